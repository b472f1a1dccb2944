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

// usage is what a rank's process holds.
type usage [resources]int64

// resource is a kind of thing that comes back.
type resource int

const (
	goroutines resource = iota
	descriptors
	mappings
	poolBytes
	deviceBytes
	resources
)

var resourceNames = [resources]string{
	"goroutines", "file descriptors", "shared mappings", "bytes in pools", "bytes of the device",
}

// tolerances are how much more of each there may be at the end. On the host all of it is ours, so
// nothing may be left. Under CUDA and NCCL two libraries open files and map queues when they first
// need them, and load each kernel into device memory at its first launch, which may be in any
// round; a pool, a window or a communicator that is lost in each round is more than that. Ranks
// that share a GPU also see what the others load, and how far these are in a teardown: 8 ranks on
// an H100 differed by 107 and 204 MB for each of them.
//
// In a world of several machines, ranks of one machine connect to each other when the first group
// of them alone is made, once in each world, and keep two goroutines for that on each side. With
// one rank on each machine at least, no rank has more than ranks minus machines others on its own.
func (p *runner) tolerances() usage {
	if p.backend() != "nccl" {
		return usage{}
	}
	allowed := usage{descriptors: 16, mappings: 16, deviceBytes: 64 << 20}
	if p.config.SharedGPUs {
		allowed[deviceBytes] = int64(p.worlds[0].rt.Size()) << 28
	}
	if machines := p.worlds[0].machines(); machines > 1 {
		allowed[goroutines] = int64(2 * (p.worlds[0].rt.Size() - machines) * len(p.worlds))
	}
	return allowed
}

// Resource is a kind of thing that has to come back, on one rank.
type Resource struct {
	Name string `json:"name"`
	Rank int    `json:"rank"`
	// Start is how much there was after the rounds that warm up, End after the last.
	Start int64 `json:"start"`
	End   int64 `json:"end"`
	// Tolerance is how much more there may be at the end.
	Tolerance int64 `json:"tolerance"`
}

// Lost reports whether more is left than may be.
func (r Resource) Lost() bool { return r.End > r.Start+r.Tolerance }

// measure counts what the process holds now.
func (p *runner) measure() (u usage, err error) {
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
	for _, w := range p.worlds {
		u[poolBytes] += w.mapped()
	}
	if p.backend() == "nccl" {
		err = nccl.Current(p.rank.Local, func(gpu *cuda.Driver) error {
			free, total, err := gpu.MemGetInfo()
			u[deviceBytes] = total - free
			return err
		})
	}
	return u, err
}

// sharedMappings counts those that are shared: segments and windows are, the Go runtime's own
// memory and the stacks of threads are not.
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

// Communicators are torn down in the background, so what they hold may take a while to come back.
const (
	leakTime = 20 * time.Second
	leakPoll = 20 * time.Millisecond
)

// usageAfterWork measures until nothing is left over, or until that has taken too long.
func (p *runner) usageAfterWork(ctx context.Context) (u usage, err error) {
	ctx, cancel := context.WithTimeout(ctx, leakTime)
	defer cancel()
	again := time.NewTicker(leakPoll)
	defer again.Stop()
	for {
		if u, err = p.measure(); err != nil || p.fits(u) {
			return u, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return u, nil
		}
	}
}

// fits reports whether nothing is left over.
func (p *runner) fits(u usage) bool {
	return !slices.ContainsFunc(p.compared(0, p.start, u), Resource.Lost)
}

// compared are what a rank held after the rounds that warm up, and holds at the end.
func (p *runner) compared(rank int, start, end usage) (all []Resource) {
	allowed := p.tolerances()
	for kind, name := range resourceNames {
		all = append(all, Resource{name, rank, start[kind], end[kind], allowed[kind]})
	}
	return all
}
