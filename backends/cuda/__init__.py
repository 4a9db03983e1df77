"""The hot table on a GPU: CudaTable, its kernels (.cu), and the interface to the device."""
