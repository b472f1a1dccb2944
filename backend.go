package symmem

import (
	"symmem/driver"
	"symmem/driver/host"
	"symmem/driver/nccl"
)

// backends are those that this program has, the one that "auto" prefers first.
var backends = []driver.Backend{nccl.Backend{}, host.Backend{}}

// Backends lists the names of the backends that this program has.
func Backends() []string {
	var names []string
	for _, b := range backends {
		names = append(names, b.Name())
	}
	return names
}

// LocalRanks returns how many ranks of a backend this machine has room for; 0 is any number. The
// name is that of Options.Backend.
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

// automatic is the first backend that works on this machine.
func automatic() driver.Backend {
	for _, b := range backends {
		if a, ok := b.(driver.Availability); !ok || a.Available() == nil {
			return b
		}
	}
	return host.Backend{}
}
