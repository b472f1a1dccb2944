// Package cublas calls cuBLAS, NVIDIA's library of matrix products, without cgo: as much of it as a
// decode layer needs for a measurement. Function names, argument orders and numbers are those of
// cublas_api.h and library_types.h of CUDA 12 and 13, which agree in them.
//
// Calls work on the GPU whose context is current on the calling thread; the caller keeps its
// goroutine on that thread (runtime.LockOSThread) from Create to Destroy. Work is asynchronous, in
// the order of the handle's stream, and is captured if that stream captures.
package cublas
