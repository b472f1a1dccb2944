package doctor

import "syscall"

// Limits holds resource limits of the process; -1 means unlimited.
type Limits struct {
	// Locked is RLIMIT_MEMLOCK in bytes, Addresses RLIMIT_AS in bytes, and Files RLIMIT_NOFILE.
	Locked    int64 `json:"memlock"`
	Addresses int64 `json:"address_space"`
	Files     int64 `json:"files"`
}

// resourceLocked is RLIMIT_MEMLOCK of Linux, which package syscall does not define.
const resourceLocked = 8

// LookAtLimits reads the limits of this process.
func LookAtLimits() Limits {
	return Limits{
		Locked: limit(resourceLocked), Addresses: limit(syscall.RLIMIT_AS),
		Files: limit(syscall.RLIMIT_NOFILE),
	}
}

// limit returns the soft limit, or -1 if it cannot be read.
func limit(resource int) int64 {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(resource, &l); err != nil || l.Cur > 1<<62 {
		return -1
	}
	return int64(l.Cur)
}

const (
	// fewAddresses covers the preferred size of an arena (1 TiB), plus as much for NCCL's
	// windows.
	fewAddresses = int64(2) << 40
	// fewLocked is less than any network card needs to pin.
	fewLocked = int64(64) << 20
	// fewFiles is less than the ranks of a large machine need, with one descriptor for each segment
	// of each peer.
	fewFiles = 1024
)

func judgeLimits(f *Facts, s *Section) {
	l := &f.Limits
	if l.Addresses >= 0 && l.Addresses < fewAddresses {
		s.add(Warn, "ulimit -v unlimited", "addresses are limited to %s: pools make do with smaller "+
			"arenas, and NCCL may find no room for windows", size(l.Addresses))
	} else {
		s.ok("addresses: %s", amount(l.Addresses))
	}
	switch {
	case l.Locked < 0 || l.Locked >= fewLocked:
		s.ok("locked memory (ulimit -l): %s", amount(l.Locked))
	case f.nccl() && f.Launcher.LocalSize < f.Launcher.Size:
		s.add(Warn, "ulimit -l unlimited, or --ulimit memlock=-1 for a container",
			"locked memory (ulimit -l) is limited to %s: networks over RDMA need more",
			size(l.Locked))
	default:
		s.ok("locked memory (ulimit -l): %s, of which ranks on one machine need none", size(l.Locked))
	}
	if l.Files >= 0 && l.Files < fewFiles {
		s.add(Warn, "ulimit -n 4096, or more", "open files are limited to %d: each segment of each "+
			"peer is one for a moment", l.Files)
	} else {
		s.ok("open files (ulimit -n): %s", countOf(l.Files))
	}
}

func amount(bytes int64) string {
	if bytes < 0 {
		return "no limit"
	}
	return size(bytes)
}
