package random

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"symmem/driver/nccl"
	"symmem/internal/cuda"
)

type usage [numResources]int64

type resource int

const (
	goroutines resource = iota
	descriptors
	mappings
	poolBytes
	deviceBytes
	numResources
)

var resourceNames = [numResources]string{
	"goroutines", "file descriptors", "shared mappings", "bytes in pools", "bytes of device memory",
}

// tolerances returns how much the usage of each resource may grow. On the host backend, nothing may
// grow, because only symmem allocates resources there. On GPUs, CUDA and NCCL open files and map
// queues when they first use them, and load each kernel into device memory at its first launch,
// which may be in any round. The tolerances are low enough to detect a pool, window or communicator
// that leaks in each round. Ranks that share a GPU also measure each other's memory: with 8 ranks
// on an H100, the device memory that a rank measured varied by 107 to 204 MB.
//
// In a world of several machines, the ranks of a machine connect to each other when they create
// the first group within the machine, once per world. Each connection needs two goroutines on
// both sides. As every machine has at least one rank, a rank has at most ranks - machines peers
// on its machine.
func (r *runner) tolerances() usage {
	if r.backend() != "nccl" {
		return usage{}
	}
	allowed := usage{descriptors: 16, mappings: 16, deviceBytes: 64 << 20}
	if r.config.SharedGPUs {
		allowed[deviceBytes] = int64(r.worlds[0].rt.Size()) << 28
	}
	if machines := r.worlds[0].machines(); machines > 1 {
		allowed[goroutines] = int64(2 * (r.worlds[0].rt.Size() - machines) * len(r.worlds))
	}
	return allowed
}

// Resource holds a rank's usage of one resource at the beginning and at the end of a run.
type Resource struct {
	Name string `json:"name"`
	Rank int    `json:"rank"`
	// Start is the usage after the warm-up.
	Start int64 `json:"start"`
	// End is the usage after the last round.
	End int64 `json:"end"`
	// Tolerance is the growth that is permitted.
	Tolerance int64 `json:"tolerance"`
}

// Lost reports whether the usage has grown by more than the tolerance.
func (r Resource) Lost() bool { return r.End > r.Start+r.Tolerance }

func (r *runner) measure() (u usage, err error) {
	runtime.GC()
	u[goroutines] = int64(runtime.NumGoroutine())
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return u, fmt.Errorf("counting file descriptors: %w", err)
	}
	u[descriptors] = int64(len(open))
	if u[mappings], err = sharedMappings(); err != nil {
		return u, fmt.Errorf("counting mappings: %w", err)
	}
	for _, w := range r.worlds {
		u[poolBytes] += w.mapped()
	}
	if r.backend() == "nccl" {
		err = nccl.Current(r.rank.Local, func(gpu *cuda.Driver) error {
			free, total, err := gpu.MemGetInfo()
			u[deviceBytes] = total - free
			return err
		})
	}
	return u, err
}

// sharedMappings returns the number of the process's shared mappings, such as segments and
// windows. It does not count the memory of the Go runtime and thread stacks, whose mappings are
// private.
func sharedMappings() (count int64, err error) {
	mappings, err := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(mappings)) {
		// A line is "from-to rwxs offset device inode path"; s stands for shared.
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasSuffix(fields[1], "s") {
			count++
		}
	}
	return count, err
}

// Communicators are destroyed in the background, so their resources are released with a delay.
// leakTime limits the wait for their release, and leakPoll is the time between measurements.
const (
	leakTime = 20 * time.Second
	leakPoll = 20 * time.Millisecond
)

// usageAfterWork measures the usage repeatedly, until it is within the tolerances or leakTime
// has passed, and returns the last measurement.
func (r *runner) usageAfterWork(ctx context.Context) (u usage, err error) {
	ctx, cancel := context.WithTimeout(ctx, leakTime)
	defer cancel()
	ticker := time.NewTicker(leakPoll)
	defer ticker.Stop()
	for {
		if u, err = r.measure(); err != nil || r.fits(u) {
			return u, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return u, nil
		}
	}
}

func (r *runner) fits(u usage) bool {
	return !slices.ContainsFunc(r.resources(0, r.start, u), Resource.Lost)
}

func (r *runner) resources(rank int, start, end usage) (all []Resource) {
	allowed := r.tolerances()
	for kind, name := range resourceNames {
		all = append(all, Resource{name, rank, start[kind], end[kind], allowed[kind]})
	}
	return all
}
