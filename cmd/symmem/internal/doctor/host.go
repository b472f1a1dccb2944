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
	Kernel string `json:"kernel"`
	// Cores is the number of processors that this process may use.
	Cores int `json:"cores"`
	// Memory is the size of main memory and swap space in bytes.
	Memory int64 `json:"memory"`
	// HugePages is the number of huge pages of 2 MiB, of which HugePagesFree are free.
	HugePages     int `json:"huge_pages"`
	HugePagesFree int `json:"huge_pages_free"`
	// SharedMemoryPages is the system's policy for transparent huge pages in shared memory.
	SharedMemoryPages string `json:"shmem_enabled,omitempty"`
	// MaxMaps is vm.max_map_count, the limit of mappings per process, or 0 if unknown.
	MaxMaps int `json:"max_map_count"`
	// Each of the following fields holds the error of a system call, or "" if the call works.
	Memfd      string `json:"memfd_error,omitempty"`
	Futex      string `json:"futex_error,omitempty"`
	Membarrier string `json:"membarrier_error,omitempty"`
	Pidfd      string `json:"pidfd_error,omitempty"`
	Sockets    string `json:"abstract_sockets_error,omitempty"`
}

// InspectHost queries the system and tries the system calls that symmem needs.
func InspectHost() Host {
	h := Host{Kernel: sys.ReadText("/proc/sys/kernel/osrelease"), Cores: sys.Cores()}
	if bytes, err := sys.Memory(); err == nil {
		h.Memory = bytes
	}
	pages := sys.ReadHugePages()
	h.HugePages, h.HugePagesFree, h.SharedMemoryPages = pages.Reserved, pages.Free, pages.SharedPolicy
	h.MaxMaps = sys.ReadNumber("/proc/sys/vm/max_map_count")
	h.Memfd, h.Futex = errorText(tryMemfd()), errorText(tryFutex())
	h.Membarrier = errorText(tryMembarrier())
	h.Pidfd, h.Sockets = errorText(tryPidfd()), errorText(trySockets())
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

const futexWake = 1

func tryFutex() error {
	word := new(uint32)
	_, _, errno := syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1,
		0, 0, 0)
	runtime.KeepAlive(word)
	return errorOf(errno)
}

// membarrierNumbers contains the number of the system call membarrier(2) for each architecture.
// Package syscall does not define it.
var membarrierNumbers = map[string]uintptr{"amd64": 324, "arm64": 283}

// tryMembarrier checks that the kernel supports expedited barriers.
func tryMembarrier() error {
	call, ok := membarrierNumbers[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("not checked on %s", runtime.GOARCH)
	}
	const query, private = 0, 1 << 3 // MEMBARRIER_CMD_QUERY and MEMBARRIER_CMD_PRIVATE_EXPEDITED
	kinds, _, errno := syscall.Syscall(call, query, 0, 0)
	if errno == 0 && kinds&private == 0 {
		return errors.New("the kernel has no expedited membarrier")
	}
	return errorOf(errno)
}

func errorOf(errno syscall.Errno) error {
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

// minMaps is the vm.max_map_count below which doctor warns. Each segment of each rank needs a
// mapping.
const minMaps = 65530

func judgeHost(f *Facts, s *Section) {
	h := &f.Host
	s.ok("%d processors, %s of memory and swap space, Linux %s", h.Cores, size(h.Memory), h.Kernel)
	for _, call := range []struct {
		name, err string
		level     Level
		advice    string
	}{
		{"anonymous shared memory (memfd)", h.Memfd, Fail, "allow memfd_create in the container's " +
			"seccomp profile, and give the container memory"},
		{"futexes", h.Futex, Fail, "allow futex in the container's seccomp profile"},
		{
			"process descriptors (pidfd)", h.Pidfd, Fail, "use Linux 5.3 or newer, and allow " +
				"pidfd_open in the container's seccomp profile",
		},
		{"abstract sockets", h.Sockets, Fail, "allow Unix sockets in the container's profile"},
		{
			"membarrier", h.Membarrier, Warn, "for slightly faster allocation, allow membarrier in " +
				"the container's seccomp profile",
		},
	} {
		if call.err != "" {
			s.add(call.level, call.advice, "%s: %s", call.name, call.err)
		} else {
			s.ok("%s: available", call.name)
		}
	}
	if h.MaxMaps > 0 && h.MaxMaps < minMaps {
		s.add(Warn, "run sysctl -w vm.max_map_count=65530 as root", "a process may have only %d "+
			"mappings, but worlds with many ranks and segments need more", h.MaxMaps)
	}
	h.judgePages(f, s)
}

func (h *Host) judgePages(f *Facts, s *Section) {
	if f.nccl() {
		return
	}
	switch {
	case h.HugePages > 0:
		s.ok("huge pages: %d of %d free", h.HugePagesFree, h.HugePages)
	case sys.HugePages{SharedPolicy: h.SharedMemoryPages}.Transparent():
		s.ok("huge pages: shared memory gets them automatically (shmem_enabled is %s)",
			h.SharedMemoryPages)
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

func countOrUnlimited(n int64) string {
	if n < 0 {
		return "no limit"
	}
	return strconv.FormatInt(n, 10)
}
