package doctor

import "syscall"

// Limits holds the resource limits of the process. -1 means unlimited.
type Limits struct {
	// Locked is RLIMIT_MEMLOCK in bytes.
	Locked int64 `json:"memlock"`
	// Addresses is RLIMIT_AS in bytes.
	Addresses int64 `json:"address_space"`
	// Files is RLIMIT_NOFILE.
	Files int64 `json:"files"`
}

// resourceLocked is Linux's RLIMIT_MEMLOCK, which package syscall does not define.
const resourceLocked = 8

// InspectLimits reads the limits of this process.
func InspectLimits() Limits {
	return Limits{
		Locked: limit(resourceLocked), Addresses: limit(syscall.RLIMIT_AS),
		Files: limit(syscall.RLIMIT_NOFILE),
	}
}

// limit returns the soft limit of a resource. It returns -1 if the resource is unlimited or the
// limit cannot be read.
func limit(resource int) int64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(resource, &l); err != nil || l.Cur > 1<<62 {
		return -1
	}
	return int64(l.Cur)
}

// Doctor warns about limits below these values.
const (
	// minAddresses is twice the address space that a pool's arena should have (1 TiB), because NCCL's
	// windows need as much address space as the arena.
	minAddresses = int64(2) << 40
	// minLocked is less than the amount of memory that any RDMA network card needs to pin.
	minLocked = int64(64) << 20
	// minFiles is the number of files below which a rank on a large machine may run out of
	// descriptors, because the rank needs one descriptor for each segment of each peer.
	minFiles = 1024
)

func judgeLimits(f *Facts, s *Section) {
	l := &f.Limits
	if l.Addresses >= 0 && l.Addresses < minAddresses {
		s.add(Warn, "run ulimit -v unlimited", "the address space is limited to %s, so pools use "+
			"smaller arenas, and NCCL may not have enough addresses for windows", size(l.Addresses))
	} else {
		s.ok("address space: %s", sizeOrUnlimited(l.Addresses))
	}
	switch {
	case l.Locked < 0 || l.Locked >= minLocked:
		s.ok("locked memory (ulimit -l): %s", sizeOrUnlimited(l.Locked))
	case f.nccl() && f.Launcher.LocalSize < f.Launcher.Size:
		s.add(Warn, "run ulimit -l unlimited, or start a container with --ulimit memlock=-1",
			"locked memory (ulimit -l) is limited to %s, but RDMA networks need more",
			size(l.Locked))
	default:
		s.ok("locked memory (ulimit -l): %s; ranks on one machine need none", size(l.Locked))
	}
	if l.Files >= 0 && l.Files < minFiles {
		s.add(Warn, "run ulimit -n 4096, or more", "open files are limited to %d, but each segment of "+
			"each peer temporarily needs one", l.Files)
	} else {
		s.ok("open files (ulimit -n): %s", countOrUnlimited(l.Files))
	}
}

func sizeOrUnlimited(bytes int64) string {
	if bytes < 0 {
		return "no limit"
	}
	return size(bytes)
}
