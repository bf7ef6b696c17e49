0 calls of the driver

