package symmem

import (
	"symmem/driver"
	"symmem/driver/host"
	"symmem/driver/nccl"
)

// backends is in the order in which "auto" tries them.
var backends = []driver.Backend{nccl.Backend{}, host.Backend{}}

// Backends returns the names of the available backends.
func Backends() []string {
	var names []string
	for _, b := range backends {
		names = append(names, b.Name())
	}

	return names
}

// LocalRanks returns how many ranks of a backend this machine can run, or 0 without a limit.
func LocalRanks(name string) (int, error) {
	b, err := chosenBackend(name)
	if err != nil {
		return 0, err
	}

	if limited, ok := b.(driver.RankLimit); ok {
		return limited.LocalRanks()
	}

	return 0, nil
}

func firstAvailableBackend() driver.Backend {
	for _, b := range backends {
		if a, ok := b.(driver.Availability); !ok || a.Available() == nil {
			return b
		}
	}

	return host.Backend{}
}
