package agreement

import (
	"encoding/binary"
	"fmt"
	"iter"
	"strings"
)

// RankSpan is the ranks from First to Last, both included.
type RankSpan struct {
	First, Last int
}

// RankSet is a set of ranks as spans: ascending, and with a gap between any two. Ranks that behave
// alike are mostly neighbours, so a set of thousands is mostly one span.
type RankSet []RankSpan

// ranksOf returns the set of one rank.
func ranksOf(rank int) RankSet { return RankSet{{rank, rank}} }

// Len returns the number of ranks.
func (s RankSet) Len() int {
	n := 0
	for _, span := range s {
		n += span.Last - span.First + 1
	}
	return n
}

// First returns the lowest rank, or -1 for the empty set.
func (s RankSet) First() int {
	if len(s) == 0 {
		return -1
	}
	return s[0].First
}

// Contains reports whether rank is in s.
func (s RankSet) Contains(rank int) bool {
	for _, span := range s {
		if rank <= span.Last {
			return rank >= span.First
		}
	}
	return false
}

// All iterates over the ranks in ascending order.
func (s RankSet) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, span := range s {
			for r := span.First; r <= span.Last; r++ {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// String lists the spans: "0-2,5".
func (s RankSet) String() string {
	var b strings.Builder
	for i, span := range s {
		if i > 0 {
			b.WriteByte(',')
		}
		if span.First == span.Last {
			fmt.Fprintf(&b, "%d", span.First)
		} else {
			fmt.Fprintf(&b, "%d-%d", span.First, span.Last)
		}
	}
	return b.String()
}

// words says "rank 3" or "ranks 0-2,5".
func (s RankSet) words() string {
	if s.Len() == 1 {
		return "rank " + s.String()
	}
	return "ranks " + s.String()
}

// verb picks the form of a verb that goes with the number of ranks.
func (s RankSet) verb(one, many string) string {
	if s.Len() == 1 {
		return one
	}
	return many
}

// union returns the ranks of both sets. It reads its arguments only.
func (s RankSet) union(o RankSet) RankSet {
	out := make(RankSet, 0, len(s)+len(o))
	for len(s) > 0 || len(o) > 0 {
		var next RankSpan
		if len(o) == 0 || len(s) > 0 && s[0].First <= o[0].First {
			next, s = s[0], s[1:]
		} else {
			next, o = o[0], o[1:]
		}
		if n := len(out); n > 0 && next.First <= out[n-1].Last+1 {
			out[n-1].Last = max(out[n-1].Last, next.Last)
			continue
		}
		out = append(out, next)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// missing returns the ranks below n that are not in s.
func (s RankSet) missing(n int) RankSet {
	var out RankSet
	next := 0
	for _, span := range s {
		if span.First > next {
			out = append(out, RankSpan{next, span.First - 1})
		}
		next = span.Last + 1
	}
	if next < n {
		out = append(out, RankSpan{next, n - 1})
	}
	return out
}

// append encodes s as the lengths of its gaps and spans.
func (s RankSet) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	next := 0
	for _, span := range s {
		dst = binary.AppendUvarint(dst, uint64(span.First-next))
		dst = binary.AppendUvarint(dst, uint64(span.Last-span.First))
		next = span.Last + 1
	}
	return dst
}

func (r *reader) rankSet(what string) RankSet {
	n := r.count(maxRanks/2, what)
	if n == 0 {
		return nil
	}
	out := make(RankSet, 0, n)
	next := uint64(0)
	for i := range n {
		gap, more := r.uvarint(what), r.uvarint(what)
		if gap > maxRanks || more > maxRanks || (i > 0 && gap == 0) || next+gap+more >= maxRanks {
			r.fail(what)
			return nil
		}
		first := next + gap
		out = append(out, RankSpan{int(first), int(first + more)})
		next = first + more + 1
	}
	return out
}
