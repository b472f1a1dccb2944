package symmem_test

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"symmem"
	"symmem/internal/sys"
	"symmem/internal/sys/systest"
)

// memoryVariable sets the memory of each software GPU in bytes.
const memoryVariable = "SOFTGPU_MEMORY"

// TestManySegments grows a pool on two ranks to thousands of segments, registers all of them in one
// agreement, checks a sum in the last segment and closes. It takes seconds, but would take minutes
// if the cost of a segment grew with the number of segments.
func TestManySegments(t *testing.T) {
	if os.Getenv(backendVariable) == "nccl" && os.Getenv(memoryVariable) == "" {
		c := systest.Command(t, 4*time.Minute, os.Args[0], "-test.run=^"+t.Name()+"$",
			"-test.timeout=3m")
		c.Env = append(os.Environ(), memoryVariable+"="+strconv.Itoa(64<<30))
		if output, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, output)
		}

		return
	}

	n := segmentsOf(t)
	o := symmem.Options{Timeout: time.Minute, Path: symmem.PathDirect}
	runRanks(t, 2, o, func(r *rank) {
		if d := r.Device(); d.Backend == "nccl" && !strings.HasPrefix(d.Name, "Software") {
			r.skip("10,000 segments need 20 GiB of each GPU", symmem.ErrUnsupported)
		}

		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), Sizing: symmem.SizeAsPyTorch})
		var last symmem.Buffer
		for range n {
			r.alloc(p, mib)
			last = r.alloc(p, mib)
		}

		r.ok(p.Register(r.ctx, r.World()))
		if windows := r.World().Stats().Windows; last.Segment() != n-1 || windows != n {
			r.failf("the last buffer is in segment %d of %d windows, want %d of %d", last.Segment(),
				windows, n-1, n)
		}

		r.checkSum(r.World(), last)
		r.closePool(p)
	})
}

// segmentsOf returns the number of segments to create: 10,000, or fewer if this process cannot have
// that many. Without a GPU, each rank needs up to two descriptors and three mappings per segment.
func segmentsOf(t *testing.T) int {
	t.Helper()
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}

	mappings := sys.ReadNumber("/proc/sys/vm/max_map_count")
	if mappings == 0 {
		t.Fatal("the kernel's limit of mappings is unknown")
	}

	const reserved = 500 // descriptors and mappings for other uses
	n := min(10_000, (int(min(files.Cur, 1<<20))-reserved)/4, (mappings-reserved)/6)
	t.Logf("%d segments", n)
	return n
}
