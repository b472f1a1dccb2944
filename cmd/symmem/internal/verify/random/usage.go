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

// usage holds the amount of each resource that the process uses.
type usage [resourceCount]int64

// resource is an index in a usage.
type resource int

const (
	goroutines  resource = iota
	descriptors          // open file descriptors
	mappings             // see sharedMappings
	poolBytes            // memory that pools have mapped
	deviceBytes          // used memory of the GPU, by all processes
	resourceCount
)

var resourceNames = [resourceCount]string{
	"goroutines", "file descriptors", "shared mappings", "bytes in pools", "bytes of device memory",
}

// tolerances returns the permitted growth of each resource. CUDA and NCCL open files and load
// kernels on first use, which may be in any round.
func (r *runner) tolerances() usage {
	if r.backend() != "nccl" {
		return usage{}
	}
	allowed := usage{descriptors: 16, mappings: 16, deviceBytes: 64 << 20}
	if r.config.SharedGPUs {
		// Ranks measure each other's memory as well. With 8 ranks on an H100, the measured device
		// memory varied by 107 to 204 MB.
		allowed[deviceBytes] = int64(r.environments[0].rt.Size()) << 28
	}
	if machines := r.environments[0].machines(); machines > 1 {
		// For each Runtime, a rank connects to the other ranks on its machine, at most ranks -
		// machines. Each connection needs two goroutines.
		connections := (r.environments[0].rt.Size() - machines) * len(r.environments)
		allowed[goroutines] = int64(2 * connections)
	}
	return allowed
}

// Resource holds a rank's usage of one resource.
type Resource struct {
	Name      string `json:"name"`
	Rank      int    `json:"rank"`
	Start     int64  `json:"start"`     // usage after the warm-up
	End       int64  `json:"end"`       // usage after the last round
	Tolerance int64  `json:"tolerance"` // permitted growth
}

// Leaked reports whether the usage has grown by more than the tolerance.
func (r Resource) Leaked() bool { return r.End > r.Start+r.Tolerance }

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
	for _, env := range r.environments {
		u[poolBytes] += env.mapped()
	}
	if r.backend() == "nccl" {
		err = nccl.Current(r.rank.LocalRank, func(gpu *cuda.Driver) error {
			free, total, err := gpu.MemGetInfo()
			u[deviceBytes] = total - free
			return err
		})
	}
	return u, err
}

// sharedMappings counts shared mappings, such as segments, but not stacks and the heap.
func sharedMappings() (count int64, err error) {
	text, err := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(text)) {
		// A line is "from-to rwxs offset device inode path"; s stands for shared.
		fields := strings.Fields(line)
		if len(fields) > 1 && strings.HasSuffix(fields[1], "s") {
			count++
		}
	}
	return count, err
}

// Resources of communicators are released in the background.
const (
	releaseTime = 20 * time.Second      // maximum wait for the release
	releasePoll = 20 * time.Millisecond // time between two measurements
)

// measureUntilReleased measures the usage until it is within the tolerances or releaseTime has
// passed.
func (r *runner) measureUntilReleased(ctx context.Context) (u usage, err error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	ticker := time.NewTicker(releasePoll)
	defer ticker.Stop()
	for {
		u, err = r.measure()
		if err != nil || !r.hasLeaks(u) {
			return u, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return u, nil
		}
	}
}

// hasLeaks reports whether a usage of this rank exceeds that after the warm-up by more than a
// tolerance.
func (r *runner) hasLeaks(u usage) bool {
	const anyRank = 0 // does not matter here
	return slices.ContainsFunc(r.compareResources(anyRank, r.warmUsage, u), Resource.Leaked)
}

func (r *runner) compareResources(rank int, start, end usage) (all []Resource) {
	tolerances := r.tolerances()
	for kind, name := range resourceNames {
		all = append(all, Resource{
			Name: name, Rank: rank, Start: start[kind], End: end[kind], Tolerance: tolerances[kind],
		})
	}
	return all
}
