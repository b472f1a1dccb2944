package doctor

import "syscall"

// Limits holds the resource limits of the process. -1 means unlimited.
type Limits struct {
	LockedMemory int64 `json:"memlock"`       // in bytes
	AddressSpace int64 `json:"address_space"` // in bytes
	OpenFiles    int64 `json:"files"`
}

// limitLockedMemory is Linux's RLIMIT_MEMLOCK, which package syscall does not define.
const limitLockedMemory = 8

// InspectLimits reads the limits of this process.
func InspectLimits() Limits {
	return Limits{
		LockedMemory: limit(limitLockedMemory), AddressSpace: limit(syscall.RLIMIT_AS),
		OpenFiles: limit(syscall.RLIMIT_NOFILE),
	}
}

// limit returns the soft limit of a resource, or -1 if the limit is unlimited or unknown.
func limit(resource int) int64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(resource, &l); err != nil || l.Cur > 1<<62 {
		return -1
	}
	return int64(l.Cur)
}

// Doctor warns about limits below these values.
const (
	// minAddressSpace suffices for a pool, which reserves up to 1 TiB of addresses, and for NCCL's
	// windows, which need as many addresses as the pool.
	minAddressSpace = int64(2) << 40
	// minLockedMemory is less than any RDMA network card needs to pin.
	minLockedMemory = int64(64) << 20
	// minOpenFiles suffices for a few segments of each peer. Each segment needs a descriptor.
	minOpenFiles = 1024
)

func judgeLimits(f *Facts, s *Section) {
	l := &f.Limits
	if l.AddressSpace >= 0 && l.AddressSpace < minAddressSpace {
		s.add(Warn, "run ulimit -v unlimited", "the address space is limited to %s, so pools use "+
			"smaller arenas, and NCCL may not have enough addresses for windows",
			formatBytes(l.AddressSpace))
	} else {
		s.addOK("address space: %s", sizeOrUnlimited(l.AddressSpace))
	}
	switch {
	case l.LockedMemory < 0 || l.LockedMemory >= minLockedMemory:
		s.addOK("locked memory (ulimit -l): %s", sizeOrUnlimited(l.LockedMemory))
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
		s.addOK("open files (ulimit -n): %s", countOrUnlimited(l.OpenFiles))
	}
}

func sizeOrUnlimited(bytes int64) string {
	if bytes < 0 {
		return "no limit"
	}
	return formatBytes(bytes)
}
