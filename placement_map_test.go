package symmem_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"symmem"
)

// The ranks map segments of memory at different addresses. If a placement policy compares them, the
// ranks can choose different free blocks, and an all-reduce adds up the wrong memory.
//
// A file in testdata/maps selects the policy and the seed of the addresses on a world line. After
// the run line, it has a program for two ranks:
//
//	alloc NAME MIB  allocate a buffer
//	free NAME
//	register        register the pool
//	map             draw the pool's segments
//	sum NAME        all-reduce the buffer and print whether the sum is right
//
// To update the outputs, run go test -rewrite.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/maps", func(t *testing.T, path string) {
		var options symmem.Options
		var placement symmem.Placement
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			if d.Cmd == "world" {
				options, placement = scanWorld(t, d)
				return ""
			}

			return runProgram(t, options, placement, strings.Split(d.Input, "\n"))
		})
	})
}

func scanWorld(t *testing.T, d *datadriven.TestData) (symmem.Options, symmem.Placement) {
	t.Helper()
	var name string
	var scatter uint64
	d.ScanArgs(t, "placement", &name)
	d.ScanArgs(t, "scatter", &scatter)
	placement, err := symmem.ParsePlacement(name)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}

	// Other check levels would report an error before the sum is wrong.
	return symmem.Options{Check: symmem.CheckOff, Scatter: scatter}, placement
}

func runProgram(
	t *testing.T, o symmem.Options, placement symmem.Placement, program []string,
) string {
	t.Helper()
	var output [2]strings.Builder // by rank
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

func (i *interpreter) execute(words []string) {
	command := words[0]
	args := words[1:]
	switch command {
	case "alloc":
		var sizeMiB int64
		if _, err := fmt.Sscan(args[1], &sizeMiB); err != nil {
			i.failf("%q: %v", words, err)
		}

		i.named[args[0]] = i.alloc(i.pool, sizeMiB*mib)
	case "free":
		i.ok(i.named[args[0]].Free())
	case "register":
		i.ok(i.pool.Register(i.ctx, i.World()))
	case "map":
		i.pool.Map(i.out)
	case "sum":
		i.sum(i.named[args[0]], args[0])
	default:
		i.failf("unknown command %q", command)
	}
}

func (i *interpreter) sum(b symmem.Buffer, name string) {
	i.fill(b, 1)
	// The sum may read any memory of the peer. Wait until the peer has filled its buffer, too.
	i.ok(i.World().Barrier(i.ctx, nil))
	i.ok(i.rank.sum(i.World(), b))
	verdict := "right"
	want := float32(i.Size())
	for _, v := range i.floats(b) {
		if v != want {
			verdict = "wrong"
		}
	}

	fmt.Fprintf(i.out, "%s lies at segment %d offset %#x: the sum is %s\n",
		name, b.Segment(), b.Offset(), verdict)
}
