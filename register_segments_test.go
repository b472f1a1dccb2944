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

// memoryVariable is how many bytes each device of the software GPU has.
const memoryVariable = "SOFTGPU_MEMORY"

// TestManySegments grows a pool on two ranks segment by segment, registers them all after
// one agreement, adds up in the last one, and closes. That takes seconds; a step that takes longer
// for each segment the more there are makes minutes of it.
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
			r.skip("10,000 segments take 20 GiB of each GPU", symmem.ErrUnsupported)
		}
		p := r.poolWith(symmem.PoolOptions{Domain: r.World(), Sizing: symmem.SizeAsPyTorch})
		var last symmem.Buffer
		for range n {
			r.alloc(p, mib)
			last = r.alloc(p, mib)
		}
		r.ok(p.Register(r.ctx, r.World()))
		if windows := r.World().Stats().Windows; last.Segment() != n-1 || windows != n {
			r.failf("the last buffer lies in segment %d, there are %d windows, want %d", last.Segment(),
				windows, n)
		}
		r.checkSum(r.World(), last)
		r.closePool(p)
	})
}

// segmentsOf is 10,000, or as many as two ranks of this process can have: where there is no GPU a
// segment takes up to two descriptors of each rank and three mappings.
func segmentsOf(t *testing.T) int {
	t.Helper()
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	mappings := sys.ReadNumber("/proc/sys/vm/max_map_count")
	if mappings == 0 {
		t.Fatal("the system does not say how many mappings a process may have")
	}
	const others = 500
	n := min(10_000, (int(min(files.Cur, 1<<20))-others)/4, (mappings-others)/6)
	t.Logf("%d segments", n)
	return n
}
