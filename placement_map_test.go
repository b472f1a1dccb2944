package symmem_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"symmem"
)

// A segment of memory has different addresses on different ranks. A placement policy that compares
// addresses can choose different free blocks, and then an all-reduce adds up unrelated memory.
//
// Each file in testdata/maps has a world command, which selects the placement policy and the seed
// that scatters addresses, and a run command with a script for two ranks:
//
//	alloc NAME MIB  allocate a buffer
//	free NAME
//	register        register the pool
//	map             print a map of the pool's segments
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

			return runScript(t, options, placement, strings.Split(d.Input, "\n"))
		})
	})
}

func scanWorld(t *testing.T, d *datadriven.TestData) (symmem.Options, symmem.Placement) {
	t.Helper()
	var name string
	var seed uint64
	d.ScanArgs(t, "placement", &name)
	d.ScanArgs(t, "scatter", &seed)
	placement, err := symmem.ParsePlacement(name)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}

	// With checks, different placements fail before a sum is wrong.
	return symmem.Options{Check: symmem.CheckOff, Scatter: seed}, placement
}

func runScript(
	t *testing.T, options symmem.Options, placement symmem.Placement, script []string,
) string {
	t.Helper()
	const ranks = 2
	var outputs [ranks]strings.Builder
	runRanks(t, ranks, options, func(r *rank) {
		p := r.poolWith(symmem.PoolOptions{
			Domain: r.World(), FirstSegment: 4 * mib, Placement: placement,
		})
		in := &interpreter{
			rank: r, pool: p, out: &outputs[r.Rank()], buffers: map[string]symmem.Buffer{},
		}
		for _, line := range script {
			in.execute(strings.Fields(line))
		}
	})
	return fmt.Sprintf("rank 0\n%srank 1\n%s", outputs[0].String(), outputs[1].String())
}

type interpreter struct {
	*rank
	pool    *symmem.Pool
	out     *strings.Builder
	buffers map[string]symmem.Buffer // by name
}

func (in *interpreter) execute(words []string) {
	command, args := words[0], words[1:]
	switch command {
	case "alloc":
		name := args[0]
		var sizeMiB int64
		if _, err := fmt.Sscan(args[1], &sizeMiB); err != nil {
			in.failf("%q: %v", words, err)
		}

		in.buffers[name] = in.alloc(in.pool, sizeMiB*mib)
	case "free":
		in.ok(in.buffers[args[0]].Free())
	case "register":
		in.ok(in.pool.Register(in.ctx, in.World()))
	case "map":
		in.pool.Map(in.out)
	case "sum":
		in.printSum(args[0])
	default:
		in.failf("unknown command %q", command)
	}
}

func (in *interpreter) printSum(name string) {
	b := in.buffers[name]
	in.fill(b, 1)
	// The sum may read a wrong buffer of the peer. Wait until the peer has filled it.
	in.ok(in.World().Barrier(in.ctx, nil))
	in.ok(in.sum(in.World(), b))
	verdict := "right"
	want := float32(in.Size())
	if slices.ContainsFunc(in.floats(b), func(got float32) bool { return got != want }) {
		verdict = "wrong"
	}

	fmt.Fprintf(in.out, "%s lies at segment %d offset %#x: the sum is %s\n",
		name, b.Segment(), b.Offset(), verdict)
}
