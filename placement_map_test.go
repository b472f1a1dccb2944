package symmem_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"symmem"
)

// TestTranscripts runs the programs in the files in testdata/maps on two ranks and compares their
// output with the files. To update the files, run go test -rewrite. A file contains
//
//	world placement=creation|address scatter=N
//
// and then run with a program, whose statements are:
//
//	alloc NAME MIB  allocate a buffer
//	free NAME
//	register        register the pool
//	map             draw the pool's segments
//	sum NAME        all-reduce the buffer and check the sum
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/maps", func(t *testing.T, path string) {
		var world symmem.Options
		var placement symmem.Placement
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			if d.Cmd == "world" {
				world, placement = scanWorld(t, d)
				return ""
			}
			return runProgram(t, world, placement, strings.Split(d.Input, "\n"))
		})
	})
}

func scanWorld(t *testing.T, d *datadriven.TestData) (symmem.Options, symmem.Placement) {
	t.Helper()
	var name string
	var scatter uint64
	d.ScanArgs(t, "placement", &name)
	d.ScanArgs(t, "scatter", &scatter)
	placement := symmem.PlaceByCreation
	if name == symmem.PlaceByAddress.String() {
		placement = symmem.PlaceByAddress
	}
	// With checks, a wrong sum would cause an error. Without them, the output shows the wrong sum.
	return symmem.Options{Check: symmem.CheckOff, Scatter: scatter}, placement
}

func runProgram(
	t *testing.T, o symmem.Options, placement symmem.Placement, program []string,
) string {
	t.Helper()
	var output [2]strings.Builder
	runRanks(t, len(output), o, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{
			Domain: r.World(), FirstSegment: 4 * mib, Placement: placement,
		})
		runner := &interpreter{
			rank: r, pool: p, out: &output[r.Rank()], named: map[string]symmem.Buffer{},
		}
		for _, line := range program {
			runner.execute(strings.Fields(line))
		}
	})
	return fmt.Sprintf("rank 0\n%srank 1\n%s", output[0].String(), output[1].String())
}

type interpreter struct {
	*rank
	pool  *symmem.Pool
	out   *strings.Builder
	named map[string]symmem.Buffer
}

func (p *interpreter) execute(words []string) {
	switch words[0] {
	case "alloc":
		var sizeMiB int64
		if _, err := fmt.Sscan(words[2], &sizeMiB); err != nil {
			p.failf("%q: %v", words, err)
		}
		p.named[words[1]] = p.alloc(p.pool, sizeMiB*mib)
	case "free":
		p.ok(p.named[words[1]].Free())
	case "register":
		p.ok(p.pool.Register(p.ctx, p.World()))
	case "map":
		p.pool.Map(p.out)
	case "sum":
		p.sum(p.named[words[1]], words[1])
	default:
		p.failf("unknown command %q", words[0])
	}
}

// sum all-reduces a buffer of ones and writes whether the sum is right.
func (p *interpreter) sum(b symmem.Buffer, name string) {
	p.fill(b, 1)
	p.ok(p.World().Barrier(p.ctx, nil)) // if the placements differ, a rank may read the peer's ones
	p.ok(p.rank.sum(p.World(), b))
	verdict := "right"
	want := float32(p.Size())
	for _, v := range p.floats(b) {
		if v != want {
			verdict = "wrong"
		}
	}
	fmt.Fprintf(p.out, "%s lies at segment %d offset %#x: the sum is %s\n",
		name, b.Segment(), b.Offset(), verdict)
}
