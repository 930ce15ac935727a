"""What an administrator configures: settings, storages, instance groups, instances; the Registry that keeps them and its stores."""
