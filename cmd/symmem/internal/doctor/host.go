package doctor

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"symmem/internal/ranklist"
	"symmem/internal/sys"
)

// symmem uses features of Linux that a container can prohibit, so doctor tries each of them:
//
//	memfd            memory without a file name, which ranks share
//	futex            a word in memory on which a thread sleeps until another one wakes it
//	pidfd            a descriptor of a process, which shows when the process exits
//	abstract socket  a Unix socket without a file
//	membarrier       a barrier on all processors that run a process; for faster allocation

// Host describes the machine's operating system, processors and memory.
type Host struct {
	Kernel        string `json:"kernel"`          // version of Linux
	Cores         int    `json:"cores"`           // number of processors that this process may use
	MemoryBytes   int64  `json:"memory"`          // size of main memory and swap space together
	HugePages     int    `json:"huge_pages"`      // number of reserved huge pages, of 2 MiB
	FreeHugePages int    `json:"huge_pages_free"` // number of reserved huge pages that are free
	// SharedMemoryPolicy states whether shared memory gets huge pages without a reservation, as in
	// /sys/kernel/mm/transparent_hugepage/shmem_enabled.
	SharedMemoryPolicy string `json:"shmem_enabled,omitempty"`
	// MaxMappings is vm.max_map_count, the limit of mappings per process, or 0 if unknown.
	MaxMappings int `json:"max_map_count"`
	// Each of the following fields states why a feature is not available, or is empty.
	MemfdError      string `json:"memfd_error,omitempty"`
	FutexError      string `json:"futex_error,omitempty"`
	MembarrierError string `json:"membarrier_error,omitempty"`
	PidfdError      string `json:"pidfd_error,omitempty"`
	SocketError     string `json:"abstract_sockets_error,omitempty"`
}

// InspectHost queries the system and tries the features that symmem uses.
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

// errorText returns the text of err, or "" if err is nil.
func errorText(err error) string {
	if err == nil {
		return ""
	}

	return err.Error()
}

// tryMemfd creates a memfd and maps it.
func tryMemfd() error {
	file, err := sys.Memfd("symmem-doctor", sys.PageSize)
	if err != nil {
		return err
	}

	const offset = 0
	mapping, err := sys.Map(file, offset, sys.PageSize)
	if err != nil {
		closeErr := file.Close()
		return errors.Join(err, closeErr)
	}

	unmapErr := mapping.Close()
	closeErr := file.Close()
	return errors.Join(unmapErr, closeErr)
}

const wakeCommand = 1 // FUTEX_WAKE in linux/futex.h

// tryFutex wakes the sleeping threads of a new futex, which has none.
func tryFutex() error {
	word := new(uint32)
	const maxThreads = 1
	_, _, errno := syscall.Syscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), wakeCommand,
		maxThreads, 0, 0, 0) // FUTEX_WAKE ignores the last three arguments
	runtime.KeepAlive(word)
	if errno != 0 {
		return errno
	}

	return nil
}

// membarrierCallNumbers holds the number of the system call membarrier(2) for each value of GOARCH.
// Package syscall does not define it.
var membarrierCallNumbers = map[string]uintptr{"amd64": 324, "arm64": 283}

// tryMembarrier checks that the kernel supports expedited barriers, the fast kind.
func tryMembarrier() error {
	callNumber, isKnown := membarrierCallNumbers[runtime.GOARCH]
	if !isKnown {
		return fmt.Errorf("not checked on %s", runtime.GOARCH)
	}

	// The commands have these names in linux/membarrier.h.
	const (
		queryCommand     = 0      // MEMBARRIER_CMD_QUERY, which returns a mask of commands
		expeditedCommand = 1 << 3 // MEMBARRIER_CMD_PRIVATE_EXPEDITED
		noFlags          = 0
	)
	supported, _, errno := syscall.Syscall(callNumber, queryCommand, noFlags, 0)
	if errno != 0 {
		return errno
	}

	isExpeditedSupported := supported&expeditedCommand != 0
	if !isExpeditedSupported {
		return errors.New("the kernel has no expedited membarrier")
	}

	return nil
}

// tryPidfd opens a pidfd of this process.
func tryPidfd() error {
	f, err := sys.Pidfd(os.Getpid())
	if err != nil {
		return err
	}

	return f.Close()
}

// trySockets listens on an abstract socket, as the prefix @ of its name requests.
func trySockets() error {
	l, err := net.Listen("unix", "@symmem-doctor-"+rand.Text())
	if err != nil {
		return err
	}

	return l.Close()
}

// minMappings is the vm.max_map_count below which judgeHost warns. It is the default of Linux.
// Each segment (a mapped part of a memory pool) of each rank needs a mapping.
const minMappings = 65530

// judgeHost adds findings about the host to s.
func judgeHost(f *Facts, s *Section) {
	h := &f.Host
	s.addOK("%d processors, %s of memory and swap space, Linux %s", h.Cores,
		formatBytes(h.MemoryBytes), h.Kernel)
	h.judgeFeatures(s)
	isLimitKnown := h.MaxMappings > 0
	if isLimitKnown && h.MaxMappings < minMappings {
		s.add(Warn, "run sysctl -w vm.max_map_count=65530 as root", "a process may have only %d "+
			"mappings, but worlds with many ranks and segments need more", h.MaxMappings)
	}

	if !f.usesNCCL() { // the host backend uses main memory and processors
		h.judgeHugePages(s)
		h.judgeProcessors(f, s)
	}
}

// judgeFeatures adds a finding to s about each feature that InspectHost has tried.
func (h *Host) judgeFeatures(s *Section) {
	for _, feature := range []struct {
		name   string
		err    string // why it is not available, or ""
		level  Level  // of the finding if it is not available
		advice string
	}{
		{
			name: "anonymous shared memory (memfd)", err: h.MemfdError, level: Fail,
			advice: "allow memfd_create in the container's seccomp profile, and give the " +
				"container memory",
		},
		{
			name: "futexes", err: h.FutexError, level: Fail,
			advice: "allow futex in the container's seccomp profile",
		},
		{
			name: "process descriptors (pidfd)", err: h.PidfdError, level: Fail,
			advice: "use Linux 5.3 or newer, and allow pidfd_open in the container's seccomp " +
				"profile",
		},
		{
			name: "abstract sockets", err: h.SocketError, level: Fail,
			advice: "allow Unix sockets in the container's profile",
		},
		{
			name: "membarrier", err: h.MembarrierError, level: Warn,
			advice: "for slightly faster allocation, allow membarrier in the container's seccomp " +
				"profile",
		},
	} {
		if feature.err != "" {
			s.add(feature.level, feature.advice, "%s: %s", feature.name, feature.err)
		} else {
			s.addOK("%s: available", feature.name)
		}
	}
}

// judgeHugePages adds a finding about huge pages to s. With ordinary pages of 4 KiB, the first
// access to a segment causes 512 times as many page faults as with huge pages of 2 MiB.
func (h *Host) judgeHugePages(s *Section) {
	policy := sys.HugePages{SharedPolicy: h.SharedMemoryPolicy}
	switch {
	case h.HugePages > 0:
		s.addOK("huge pages: %d of %d free", h.FreeHugePages, h.HugePages)
	case policy.IsTransparent():
		s.addOK("huge pages: shared memory gets them automatically (shmem_enabled is %s)",
			h.SharedMemoryPolicy)
	default: // huge pages are optional
		s.add(OK, "as root, run sysctl -w vm.nr_hugepages=N with one page for each 2 MiB of segments, "+
			"or echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled", "huge pages: none; "+
			"the first access to segments causes 512 times as many page faults")
	}
}

// judgeProcessors adds a finding to s if the ranks of the trial share processors.
func (h *Host) judgeProcessors(f *Facts, s *Section) {
	if f.Trial != nil && f.Trial.Ranks > h.Cores {
		s.add(Warn, "start at most as many ranks as there are processors", "%d ranks share %s, so "+
			"they wait for each other", f.Trial.Ranks, ranklist.Plural(h.Cores, "processor"))
	}
}
