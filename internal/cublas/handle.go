package cublas

import (
	"symmem/internal/cuda"
	"symmem/internal/dl"
)

// Handle is cuBLAS on one GPU: cublasHandle_t. One thread uses it at a time. States: open;
// destroyed.
type Handle uintptr

// Create makes a handle on the GPU of the calling thread's context. It allocates device memory and
// takes a while. Each Create is paired with one Destroy.
func (l *Library) Create() (Handle, error) {
	handle := dl.NewCell(Handle(0))
	err := l.call(create, handle.Address())
	return handle.Take(), err
}

// Destroy gives a handle back. It waits for all work of the GPU.
func (l *Library) Destroy(h Handle) error { return l.call(destroy, uintptr(h)) }

// Version is the library's version, such as 120900 for 12.9.
func (l *Library) Version(h Handle) (int, error) {
	version := dl.NewCell(int32(0))
	err := l.call(getVersion, uintptr(h), version.Address())
	return int(version.Take()), err
}

// SetStream makes later work run on a stream. It takes a workspace of the user's back, so
// SetWorkspace comes after it.
func (l *Library) SetStream(h Handle, stream cuda.Stream) error {
	return l.call(setStream, uintptr(h), uintptr(stream))
}

// WorkspaceBytes is what cuBLAS wants on GPUs of compute capability 9.0 and newer.
const WorkspaceBytes = 32 << 20

// SetWorkspace gives cuBLAS device memory for its own use, aligned to 256 bytes. Without it a
// captured product allocates in stream order. The memory outlives the graphs that were captured
// with it.
func (l *Library) SetWorkspace(h Handle, address uintptr, bytes int64) error {
	return l.call(setWorkspace, uintptr(h), address, uintptr(bytes))
}
