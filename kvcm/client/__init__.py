"""Client SDK: MetaClient, TransferClient, ManagerClient, trace replay."""
