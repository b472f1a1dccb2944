package symmem_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"symmem"
)

// A pool maps memory in segments. Each rank maps a segment at another address. If free blocks have
// the same size, a placement policy chooses one of them for a buffer. With the policy address, the
// choice depends on the addresses, so the place of the buffer, its segment and offset, can differ
// between ranks. Then an all-reduce of the buffer adds up the wrong memory.

// TestTranscripts runs the programs in testdata/maps on two ranks, and compares their output with
// the files. To update the files, run go test -rewrite. A file has a world line, for example
//
//	world placement=address scatter=1
//
// It selects the policy, which is creation or address, and the seed for the random addresses of
// segments. Then the file has run with a program, which consists of these statements:
//
//	alloc NAME MIB  allocate a buffer
//	free NAME
//	register        register the pool
//	map             draw the pool's segments
//	sum NAME        all-reduce the buffer and print whether the sum is right
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

// scanWorld parses the arguments of a world line.
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

	// With CheckOff, different places cause a wrong sum instead of an error.
	return symmem.Options{Check: symmem.CheckOff, Scatter: scatter}, placement
}

// runProgram runs a program on two ranks and returns the output of rank 0, then of rank 1.
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

// interpreter runs a program on one rank.
type interpreter struct {
	*rank
	pool  *symmem.Pool
	out   *strings.Builder
	named map[string]symmem.Buffer // by the NAME in alloc
}

// execute runs a statement: a command and its arguments.
func (p *interpreter) execute(words []string) {
	command := words[0]
	args := words[1:]
	switch command {
	case "alloc":
		var sizeMiB int64
		if _, err := fmt.Sscan(args[1], &sizeMiB); err != nil {
			p.failf("%q: %v", words, err)
		}

		p.named[args[0]] = p.alloc(p.pool, sizeMiB*mib)
	case "free":
		p.ok(p.named[args[0]].Free())
	case "register":
		p.ok(p.pool.Register(p.ctx, p.World()))
	case "map":
		p.pool.Map(p.out)
	case "sum":
		p.sum(p.named[args[0]], args[0])
	default:
		p.failf("unknown command %q", command)
	}
}

// sum all-reduces a buffer of ones and prints whether the sum is right.
func (p *interpreter) sum(b symmem.Buffer, name string) {
	p.fill(b, 1)
	// If the places differ, a rank reads other memory of the peer than b. After the barrier, the peer
	// has written it.
	p.ok(p.World().Barrier(p.ctx, nil))
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
