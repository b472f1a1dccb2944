package doctor

import (
	"strconv"
	"syscall"
)

// Limits holds the resource limits of the process. -1 means unlimited.
type Limits struct {
	LockedMemory int64 `json:"memlock"`       // in bytes
	AddressSpace int64 `json:"address_space"` // in bytes
	OpenFiles    int64 `json:"files"`
}

// limitLockedMemory is RLIMIT_MEMLOCK on Linux. Package syscall does not define it.
const limitLockedMemory = 8

// InspectLimits reads the limits of this process.
func InspectLimits() Limits {
	return Limits{
		LockedMemory: limit(limitLockedMemory), AddressSpace: limit(syscall.RLIMIT_AS),
		OpenFiles: limit(syscall.RLIMIT_NOFILE),
	}
}

// limit returns the soft limit of a resource, or -1 if it is unlimited or unknown.
func limit(resource int) int64 {
	var l syscall.Rlimit
	err := syscall.Getrlimit(resource, &l)
	isUnlimited := l.Cur > 1<<62 // such as RLIM_INFINITY
	if err != nil || isUnlimited {
		return -1
	}

	return int64(l.Cur)
}

// Lower limits cause a warning.
const (
	minAddressSpace = int64(2) << 40  // 1 TiB for a pool, and as much for NCCL's windows
	minLockedMemory = int64(64) << 20 // RDMA network cards need more
	minOpenFiles    = 1024            // each segment of each peer needs a descriptor
)

func judgeLimits(f *Facts, s *Section) {
	l := &f.Limits
	if l.AddressSpace >= 0 && l.AddressSpace < minAddressSpace {
		s.add(Warn, "run ulimit -v unlimited", "the address space is limited to %s, so pools use "+
			"smaller arenas, and NCCL may not have enough addresses for windows",
			formatBytes(l.AddressSpace))
	} else {
		s.addOK("address space: %s", formatSizeLimit(l.AddressSpace))
	}

	switch {
	case l.LockedMemory < 0 || l.LockedMemory >= minLockedMemory:
		s.addOK("locked memory (ulimit -l): %s", formatSizeLimit(l.LockedMemory))
	case f.usesNCCL() && f.Launcher.LocalSize < f.Launcher.Size:
		s.add(Warn, "run ulimit -l unlimited, or start a container with --ulimit memlock=-1",
			"locked memory (ulimit -l) is limited to %s, but RDMA networks need more",
			formatBytes(l.LockedMemory))
	default:
		s.addOK("locked memory (ulimit -l): %s; ranks on one machine need none",
			formatBytes(l.LockedMemory))
	}

	if l.OpenFiles >= 0 && l.OpenFiles < minOpenFiles {
		s.add(Warn, "run ulimit -n 4096, or more", "open files are limited to %d, but a rank opens one "+
			"for each segment of each peer", l.OpenFiles)
	} else {
		s.addOK("open files (ulimit -n): %s", formatCountLimit(l.OpenFiles))
	}
}

func formatSizeLimit(bytes int64) string {
	if bytes < 0 {
		return "no limit"
	}

	return formatBytes(bytes)
}

func formatCountLimit(n int64) string {
	if n < 0 {
		return "no limit"
	}

	return strconv.FormatInt(n, 10)
}
