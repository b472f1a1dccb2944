package bench

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"symmem"
)

// combine is what a reduction of all ranks' elements must give, the long way.
func combine(op symmem.ReduceOp, values []int64) int64 {
	result := values[0]
	for _, v := range values[1:] {
		switch op {
		case symmem.Prod:
			result *= v
		case symmem.Min:
			result = min(result, v)
		case symmem.Max:
			result = max(result, v)
		default:
			result += v
		}
	}
	if op == symmem.Avg {
		return result / int64(len(values))
	}
	return result
}

func operationNamed(t rapid.TB, name string) *Operation {
	found, err := ParseOperations([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	return &found[0]
}

func TestReducedPatternsAreTheReductionOfWhatRanksSend(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := pattern{
			operation: operationNamed(rt, "all_reduce"),
			reduceOp:  symmem.ReduceOp(rapid.IntRange(0, 4).Draw(rt, "reduction")),
			ranks:     int64(rapid.IntRange(1, 80).Draw(rt, "ranks")),
			count:     1000,
		}
		i := int64(rapid.IntRange(0, math.MaxInt32).Draw(rt, "element"))
		var sent []int64
		for rank := range p.ranks {
			sent = append(sent, p.sent(rank, i))
		}
		if got, want := p.reduced(i), combine(p.reduceOp, sent); got != want {
			rt.Fatalf("%v of %v: got %d, want %d", p.reduceOp, sent, got, want)
		}
	})
}

func TestWhatRanksReceiveIsWhatTheOthersSent(t *testing.T) {
	const ranks, count = 3, 5
	for _, c := range []struct {
		name, operation string
		rank, element   int64
		from, sent      int64
	}{
		{"an all-gather has the parts in the order of ranks", "all_gather", 1, 12, 2, 2},
		{"an all-to-all has this rank's part of each", "alltoall", 1, 12, 2, 7},
		{"a broadcast has the root's", "broadcast", 2, 4, 0, 4},
		{"a ring has the neighbour's", "sendrecv", 0, 3, 2, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pattern{operation: operationNamed(t, c.operation), count: count, ranks: ranks}
			got, has := p.wanted(c.rank, c.element)
			if want := p.sent(c.from, c.sent); !has || got != want {
				t.Errorf("got %d, want %d", got, want)
			}
		})
	}
	p := pattern{operation: operationNamed(t, "reduce"), count: count, ranks: ranks}
	if _, has := p.wanted(1, 0); has {
		t.Error("a reduce writes to a rank that is not the root")
	}
}
