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

// A run tests whether resources leak. Suppose that this process has 20 open files after the first
// rounds, and 50 at the end of the run. On the host backend, the tolerance is 0, so files leak. On
// the nccl backend, up to 16 more files are permitted.

// usage holds the amount of each resource that the process uses.
type usage [resourceCount]int64

// resource is an index in a usage.
type resource int

const (
	goroutines  resource = iota
	descriptors          // open file descriptors
	mappings             // shared mappings of memory, such as segments (memory of pools)
	poolBytes            // size of the memory that pools have mapped
	deviceBytes          // used memory of the GPU, by all processes; 0 without GPUs
	resourceCount
)

var resourceNames = [resourceCount]string{
	"goroutines", "file descriptors", "shared mappings", "bytes in pools", "bytes of device memory",
}

// tolerances returns how much the usage of each resource may grow. On the nccl backend, it can grow
// without a leak: CUDA and NCCL open files and load kernels on first use, which can be late.
func (r *runner) tolerances() usage {
	if r.backend() != "nccl" {
		return usage{}
	}

	env := r.environments[0] // ranks and machines are the same in all environments
	ranks, machines := env.rt.Size(), env.machines()
	allowed := usage{descriptors: 16, mappings: 16, deviceBytes: 64 << 20}
	if r.config.SharedGPUs {
		// deviceBytes includes the memory of other ranks, which grows at other times. With 8 ranks on
		// an H100, it varied by 107 to 204 MB. Allow 256 MiB for each rank.
		allowed[deviceBytes] = int64(ranks) * (256 << 20)
	}

	if machines > 1 {
		// A rank may connect to its peers, the other ranks on its machine, in any round, once for each
		// environment. Each other machine has at least one rank, which leaves at most this many peers:
		maxPeers := ranks - machines
		const goroutinesPerConnection = 2
		allowed[goroutines] = int64(goroutinesPerConnection * maxPeers * len(r.environments))
	}

	return allowed
}

// measure returns the current usage of the process.
func (r *runner) measure() (usage, error) {
	var u usage
	runtime.GC() // makes finalizers release resources of unreachable values
	u[goroutines] = int64(runtime.NumGoroutine())
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return u, fmt.Errorf("counting file descriptors: %w", err)
	}

	u[descriptors] = int64(len(open))
	u[mappings], err = countSharedMappings()
	if err != nil {
		return u, fmt.Errorf("counting mappings: %w", err)
	}

	for _, env := range r.environments {
		u[poolBytes] += env.mappedBytes()
	}

	if r.backend() != "nccl" {
		return u, nil
	}

	err = nccl.Current(r.rank.LocalRank, func(gpu *cuda.Driver) error {
		free, total, err := gpu.MemGetInfo()
		u[deviceBytes] = total - free
		return err
	})
	return u, err
}

// countSharedMappings counts shared mappings, such as segments, but not stacks and the heap.
func countSharedMappings() (count int64, err error) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, err
	}

	for line := range strings.Lines(string(text)) {
		// Example: "7f31c8000000-7f31c8200000 rw-s 00000000 00:01 2077 /memfd:segment (deleted)". The
		// second field is the permissions. They end with s for a shared mapping, or p for a private
		// one.
		fields := strings.Fields(line)
		isShared := len(fields) > 1 && strings.HasSuffix(fields[1], "s")
		if isShared {
			count++
		}
	}

	return count, nil
}

// Resources of communicators are released in the background, so a leak may disappear.
const (
	releaseTime = 20 * time.Second      // how long to wait for the release
	releasePoll = 20 * time.Millisecond // time between two measurements
)

// measureUntilReleased measures the usage repeatedly until there are no leaks, and returns it.
// After releaseTime, it returns the last usage, without an error.
func (r *runner) measureUntilReleased(ctx context.Context) (usage, error) {
	ctx, cancel := context.WithTimeout(ctx, releaseTime)
	defer cancel()
	ticker := time.NewTicker(releasePoll)
	defer ticker.Stop()
	for {
		u, err := r.measure()
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

// Resource holds how the usage of one resource has changed on a rank.
type Resource struct {
	Name      string `json:"name"`
	Rank      int    `json:"rank"`
	Start     int64  `json:"start"`     // usage after the first rounds, the warm-up
	End       int64  `json:"end"`       // usage after the last round
	Tolerance int64  `json:"tolerance"` // permitted growth
}

// Leaked reports whether the usage has grown by more than the tolerance.
func (r Resource) Leaked() bool { return r.End > r.Start+r.Tolerance }

// hasLeaks reports whether the usage u of this rank shows a leak since the warm-up.
func (r *runner) hasLeaks(u usage) bool {
	const anyRank = 0 // Leaked does not use the rank
	resources := r.compareResources(anyRank, r.warmUsage, u)
	return slices.ContainsFunc(resources, Resource.Leaked)
}

// compareResources compares a rank's usages at the start and the end. It returns a Resource for
// each resource.
func (r *runner) compareResources(rank int, start, end usage) []Resource {
	tolerances := r.tolerances()
	var all []Resource
	for kind, name := range resourceNames {
		all = append(all, Resource{
			Name: name, Rank: rank, Start: start[kind], End: end[kind], Tolerance: tolerances[kind],
		})
	}

	return all
}
