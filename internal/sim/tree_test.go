package sim

import "symmem/internal/agreement"

// DefaultArity is how many ranks report to one: wide enough that 4096 ranks are three hops from
// the root, narrow enough that no rank merges more than a few payloads.
const DefaultArity = 16

// Traffic counts what an exchange sends.
type Traffic struct {
	// Messages is the number of messages, up and down.
	Messages int
	// Bytes is the sum of their sizes.
	Bytes int
	// Depth is the number of hops from the farthest rank to the root.
	Depth int
	// Largest is the size of the largest message, in bytes.
	Largest int
}

// Tree is an exchange that merges payloads on the way up to the root and sends the summary down
// again. A node stands for a run of neighbouring ranks: its first present rank merges what the
// parts of the rest report. Runs of neighbours keep rank sets short. A rank that is missing reports
// nothing and its part is reported by the next present rank, as it would be after a deadline.
type Tree struct {
	// Arity is the number of parts of a node; 0 is DefaultArity.
	Arity int
	// Traffic grows with each round.
	Traffic Traffic
}

// Round merges the payloads, of which payloads[i] is that of rank i and nil that of a missing rank,
// and returns the summary that every present rank gets. An error wraps [agreement.ErrProtocol].
func (t *Tree) Round(payloads [][]byte) ([]byte, error) {
	present := make([]int, 0, len(payloads))
	for rank, p := range payloads {
		if p != nil {
			present = append(present, rank)
		}
	}
	if len(present) == 0 {
		return agreement.MergeAll(payloads)
	}
	summary, err := t.fold(payloads, present, 0)
	if err != nil {
		return nil, err
	}
	for range len(present) - 1 {
		t.send(summary)
	}
	return summary, nil
}

// fold returns the summary of the given ranks, of which the first one does the merging.
func (t *Tree) fold(payloads [][]byte, ranks []int, depth int) ([]byte, error) {
	t.Traffic.Depth = max(t.Traffic.Depth, depth)
	sum := payloads[ranks[0]]
	rest := ranks[1:]
	arity := t.Arity
	if arity < 2 {
		arity = DefaultArity
	}
	for parts := min(arity, len(rest)); parts > 0; parts-- {
		n := (len(rest) + parts - 1) / parts
		part, err := t.fold(payloads, rest[:n], depth+1)
		if err != nil {
			return nil, err
		}
		t.send(part)
		if sum, err = agreement.Merge(sum, part); err != nil {
			return nil, err
		}
		rest = rest[n:]
	}
	return sum, nil
}

func (t *Tree) send(message []byte) {
	t.Traffic.Messages++
	t.Traffic.Bytes += len(message)
	t.Traffic.Largest = max(t.Traffic.Largest, len(message))
}
