"""The hot table on a GPU: CudaTable, its kernels (.cu), and the device that they run on."""
