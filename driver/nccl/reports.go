package nccl

import (
	"unsafe"

	"symmem/driver/nccl/kernels"
	"symmem/internal/cuda"
	"symmem/internal/dl"
	"symmem/internal/ranked"
)

// reports hands out reports: host memory that kernels write.
type reports struct {
	mu    ranked.Mutex[reportsMu]
	pages []uintptr         // guarded by mu
	free  []*kernels.Report // guarded by mu
}

// take hands out a report. It is called on a thread of the device.
func (r *reports) take(driver *cuda.Driver) (*kernels.Report, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.free) == 0 {
		page, err := driver.MemAllocHost(pageBytes)
		if err != nil {
			return nil, err
		}
		r.pages = append(r.pages, page)
		memory := dl.Bytes(page, pageBytes)
		for at := 0; at < pageBytes; at += kernels.ReportBytes {
			r.free = append(r.free, (*kernels.Report)(unsafe.Pointer(&memory[at])))
		}
	}
	last := len(r.free) - 1
	taken := r.free[last]
	r.free = r.free[:last]
	taken.Clear()
	return taken, nil
}

// put takes a report back that no kernel writes any more.
func (r *reports) put(report *kernels.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = append(r.free, report)
}

func (r *reports) close(driver *cuda.Driver) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, page := range r.pages {
		if e := driver.MemFreeHost(page); err == nil {
			err = e
		}
	}
	r.pages, r.free = nil, nil
	return err
}
