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

// usage holds the amount of each resource that the process uses. The indexes are resources.
type usage [resourceCount]int64

// resource is an index in a usage.
type resource int

const (
	goroutines  resource = iota
	descriptors          // open file descriptors
	mappings             // shared mappings of memory, such as segments
	poolBytes            // memory that pools have mapped
	deviceBytes          // used memory of the GPU, by all processes; 0 without GPUs
	resourceCount
)

var resourceNames = [resourceCount]string{
	"goroutines", "file descriptors", "shared mappings", "bytes in pools", "bytes of device memory",
}

// tolerances returns the permitted growth of each resource. On the nccl backend, resources may grow
// without a leak: CUDA and NCCL open files and load kernels on first use, which can be late.
func (r *runner) tolerances() usage {
	if r.backend() != "nccl" {
		return usage{}
	}

	env := r.environments[0]
	ranks, machines := env.rt.Size(), env.machines() // the same in all environments
	allowed := usage{descriptors: 16, mappings: 16, deviceBytes: 64 << 20}
	if r.config.SharedGPUs {
		// deviceBytes includes the memory of other ranks, which grows at other times. With 8 ranks on
		// an H100, it varied by 107 to 204 MB. Allow 256 MiB for each rank.
		allowed[deviceBytes] = int64(ranks) * (256 << 20)
	}

	if machines > 1 {
		// A rank may connect to the other ranks on its machine in any round, once for each Runtime.
		// Each machine has at least one rank, so these are at most ranks - machines.
		maxPeers := ranks - machines
		const goroutinesPerConnection = 2
		allowed[goroutines] = int64(goroutinesPerConnection * maxPeers * len(r.environments))
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
		// last letter of the permissions is s for a shared mapping, or p for a private one.
		fields := strings.Fields(line)
		if len(fields) > 1 && strings.HasSuffix(fields[1], "s") {
			count++
		}
	}

	return count, nil
}

// Resources of communicators are released in the background.
const (
	releaseTime = 20 * time.Second      // maximum wait for the release
	releasePoll = 20 * time.Millisecond // time between two measurements
)

// measureUntilReleased measures the usage repeatedly until it is within the tolerances, and returns
// it. After releaseTime, it returns the last usage, without an error.
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

// hasLeaks reports whether this rank uses more of a resource than after the warm-up, by more than
// the tolerance.
func (r *runner) hasLeaks(u usage) bool {
	const anyRank = 0 // Leaked does not use the rank
	resources := r.compareResources(anyRank, r.warmUsage, u)
	return slices.ContainsFunc(resources, Resource.Leaked)
}

// compareResources returns a Resource for each resource of a rank.
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
