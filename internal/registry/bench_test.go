package registry

import (
	"fmt"
	"testing"
)

// filled returns a registry in which all segments are registered with all groups.
func filled(b *testing.B, segments, groups int) (*Registry, []*Group) {
	b.Helper()
	r := &Registry{}
	var all []*Group
	for id := range groups {
		all = append(all, join(b, r, GroupKey(id)))
	}
	for o := range int32(segments) {
		track(b, r, o)
		for _, g := range all {
			register(b, g, o)
		}
	}
	return r, all
}

// BenchmarkScopeEndWithNothingNew must not depend on how much is registered.
func BenchmarkScopeEndWithNothingNew(b *testing.B) {
	for _, segments := range []int{10, 100, 1000, 10_000} {
		for _, groups := range []int{1, 64} {
			b.Run(fmt.Sprintf("segments=%d/groups=%d", segments, groups), func(b *testing.B) {
				_, all := filled(b, segments, groups)
				i := 0
				b.ReportAllocs()
				for b.Loop() {
					if all[i&(groups-1)].HasPending() {
						b.Fatal("something is pending")
					}
					i++
				}
			})
		}
	}
}

// BenchmarkScopeEndWithFourNew registers four segments and takes them out again; the rest stays.
func BenchmarkScopeEndWithFourNew(b *testing.B) {
	for _, segments := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("segments=%d", segments), func(b *testing.B) {
			r, all := filled(b, segments, 1)
			g, dst := all[0], make([]Segment, 0, 4)
			b.ReportAllocs()
			for b.Loop() {
				for k := range int32(4) {
					_ = r.Track(segment(int32(segments) + k))
				}
				dst = g.Pending(dst[:0])
				for _, s := range dst {
					_ = g.Registered(s, 1)
				}
				for _, s := range dst {
					_, _ = r.Release(s)
					_ = g.Deregistered(s)
					_ = r.Untrack(s)
				}
			}
			if len(dst) != 4 || r.Len() != segments {
				b.Fatalf("%d pending, %d left", len(dst), r.Len())
			}
		})
	}
}
