package doctor

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"symmem/internal/ranklist"
	"symmem/internal/sys"
)

// Host describes the machine's operating system, processors and memory.
type Host struct {
	Kernel string `json:"kernel"` // version of Linux
	// Cores is the number of processors that this process is allowed to use.
	Cores int `json:"cores"`
	// MemoryBytes is the size of main memory and swap space.
	MemoryBytes int64 `json:"memory"`
	// HugePages is the number of reserved huge pages of 2 MiB, and FreeHugePages how many of them
	// are free.
	HugePages     int `json:"huge_pages"`
	FreeHugePages int `json:"huge_pages_free"`
	// SharedMemoryPolicy is the system's policy for transparent huge pages in shared memory, as in
	// /sys/kernel/mm/transparent_hugepage/shmem_enabled.
	SharedMemoryPolicy string `json:"shmem_enabled,omitempty"`
	// MaxMappings is vm.max_map_count, the limit of mappings per process, or 0 if unknown.
	MaxMappings int `json:"max_map_count"`
	// Each of the following fields is the error of a system call, or "" if the call works.
	MemfdError      string `json:"memfd_error,omitempty"`
	FutexError      string `json:"futex_error,omitempty"`
	MembarrierError string `json:"membarrier_error,omitempty"`
	PidfdError      string `json:"pidfd_error,omitempty"`
	SocketError     string `json:"abstract_sockets_error,omitempty"`
}

// InspectHost queries the system and tries the system calls that symmem needs.
func InspectHost() Host {
	h := Host{Kernel: sys.ReadText("/proc/sys/kernel/osrelease"), Cores: sys.Cores()}
	if bytes, err := sys.Memory(); err == nil {
		h.MemoryBytes = bytes
	}
	pages := sys.ReadHugePages()
	h.HugePages = pages.Reserved
	h.FreeHugePages = pages.Free
	h.SharedMemoryPolicy = pages.SharedPolicy
	h.MaxMappings = sys.ReadNumber("/proc/sys/vm/max_map_count")
	h.MemfdError = errorText(tryMemfd())
	h.FutexError = errorText(tryFutex())
	h.MembarrierError = errorText(tryMembarrier())
	h.PidfdError = errorText(tryPidfd())
	h.SocketError = errorText(trySockets())
	return h
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func tryMemfd() error {
	f, err := sys.Memfd("symmem-doctor", sys.PageSize)
	if err != nil {
		return err
	}
	m, err := sys.Map(f, 0, sys.PageSize)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(m.Close(), f.Close())
}

const futexWake = 1 // FUTEX_WAKE in linux/futex.h

// tryFutex wakes the waiters of a futex that has none.
func tryFutex() error {
	word := new(uint32)
	const maxWaiters = 1
	_, _, errno := syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake,
		maxWaiters, 0, 0, 0)
	runtime.KeepAlive(word)
	return errnoError(errno)
}

// membarrierCallNumbers maps each GOARCH to the number of the system call membarrier(2), which
// package syscall does not define.
var membarrierCallNumbers = map[string]uintptr{"amd64": 324, "arm64": 283}

// tryMembarrier checks that the kernel supports expedited barriers.
func tryMembarrier() error {
	call, ok := membarrierCallNumbers[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("not checked on %s", runtime.GOARCH)
	}
	// MEMBARRIER_CMD_QUERY and MEMBARRIER_CMD_PRIVATE_EXPEDITED in linux/membarrier.h.
	const queryCommand, expeditedCommand = 0, 1 << 3
	commands, _, errno := syscall.Syscall(call, queryCommand, 0, 0)
	if errno == 0 && commands&expeditedCommand == 0 {
		return errors.New("the kernel has no expedited membarrier")
	}
	return errnoError(errno)
}

// errnoError returns errno as an error, or nil if the system call has succeeded.
func errnoError(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

func tryPidfd() error {
	f, err := sys.Pidfd(os.Getpid())
	if err != nil {
		return err
	}
	return f.Close()
}

func trySockets() error {
	l, err := net.Listen("unix", "@symmem-doctor-"+rand.Text())
	if err != nil {
		return err
	}
	return l.Close()
}

// minMappings is the vm.max_map_count below which judgeHost warns. It is the default of Linux.
// Each segment (a mapped part of a pool) of each rank needs a mapping.
const minMappings = 65530

func judgeHost(f *Facts, s *Section) {
	h := &f.Host
	s.addOK("%d processors, %s of memory and swap space, Linux %s", h.Cores,
		formatBytes(h.MemoryBytes), h.Kernel)
	for _, call := range []struct {
		name, err string
		level     Level
		advice    string
	}{
		{"anonymous shared memory (memfd)", h.MemfdError, Fail, "allow memfd_create in the container's " +
			"seccomp profile, and give the container memory"},
		{"futexes", h.FutexError, Fail, "allow futex in the container's seccomp profile"},
		{
			"process descriptors (pidfd)", h.PidfdError, Fail, "use Linux 5.3 or newer, and allow " +
				"pidfd_open in the container's seccomp profile",
		},
		{"abstract sockets", h.SocketError, Fail, "allow Unix sockets in the container's profile"},
		{
			"membarrier", h.MembarrierError, Warn, "for slightly faster allocation, allow membarrier in " +
				"the container's seccomp profile",
		},
	} {
		if call.err != "" {
			s.add(call.level, call.advice, "%s: %s", call.name, call.err)
		} else {
			s.addOK("%s: available", call.name)
		}
	}
	if h.MaxMappings > 0 && h.MaxMappings < minMappings {
		s.add(Warn, "run sysctl -w vm.max_map_count=65530 as root", "a process may have only %d "+
			"mappings, but worlds with many ranks and segments need more", h.MaxMappings)
	}
	h.judgeHugePages(f, s)
}

// judgeHugePages adds findings that matter only for the host backend, which uses main memory and
// processors, to s.
func (h *Host) judgeHugePages(f *Facts, s *Section) {
	if f.usesNCCL() {
		return
	}
	switch {
	case h.HugePages > 0:
		s.addOK("huge pages: %d of %d free", h.FreeHugePages, h.HugePages)
	case sys.HugePages{SharedPolicy: h.SharedMemoryPolicy}.IsTransparent():
		s.addOK("huge pages: shared memory gets them automatically (shmem_enabled is %s)",
			h.SharedMemoryPolicy)
	default:
		s.add(OK, "as root, run sysctl -w vm.nr_hugepages=N with one page for each 2 MiB of segments, "+
			"or echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled", "huge pages: none; "+
			"the first access to segments causes 512 times as many page faults")
	}
	if f.Trial != nil && f.Trial.Ranks > h.Cores {
		s.add(Warn, "start at most as many ranks as there are processors", "%d ranks share %s, so "+
			"they wait for each other", f.Trial.Ranks, ranklist.Plural(h.Cores, "processor"))
	}
}

func formatCountLimit(n int64) string {
	if n < 0 {
		return "no limit"
	}
	return strconv.FormatInt(n, 10)
}
