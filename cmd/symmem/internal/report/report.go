// Package report makes a page from the histories and the result of `symmem diff`.
package report

import (
	"fmt"

	"symmem/cmd/symmem/internal/diff"
	"symmem/cmd/symmem/internal/diff/history"
	"symmem/internal/page"
	"symmem/internal/ranklist"
)

// Build returns a page for the result of a comparison. If progress is not nil, Build calls it
// repeatedly with the number of events added so far and the number of all events.
func Build(r *diff.Report, progress func(done, total int)) *page.Page {
	b := &builder{
		page: &page.Page{
			Title: "symmem report", Agree: r.RanksAgree, Compared: r.HasComparison(), Verdict: Summarize(r),
			Notes: r.Notes,
		},
		frameIndexes: map[string]int32{}, textIndexes: map[string]int32{}, pathIndexes: map[pathKey]int{},
		progress: progress,
	}
	for i := range r.Ranks {
		rank := &r.Ranks[i]
		b.totalEvents += rank.EventCount
		b.page.Ranks = append(b.page.Ranks, page.Rank{
			Rank: rank.Rank, File: history.MakePrintable(rank.File), Format: rank.Format,
			Events: rank.EventCount, Notes: rank.Notes,
		})
	}

	ranks := b.findHistories(r)
	for i := range r.Sequences {
		b.addSequence(&r.Sequences[i])
	}

	b.addTables(r, ranks)
	return b.page
}

// Summarize returns a sentence about the result, and a sentence for each of r.FileNotes.
func Summarize(r *diff.Report) string {
	text := summarizeSequences(r)
	for _, note := range r.FileNotes {
		text += " Note: " + note + "."
	}

	return text
}

// summarizeSequences returns a sentence about the first difference between the ranks.
func summarizeSequences(r *diff.Report) string {
	switch {
	case !r.HasComparison():
		return "There is nothing to compare: no two ranks have events of the same pool or group."
	case r.RanksAgree:
		return "The ranks agree."
	}

	for i := range r.Sequences {
		s := &r.Sequences[i]
		d, subject := s.RequestDifference, "requests"
		if d == nil {
			d, subject = s.PlacementDifference, "places"
		}

		if d == nil {
			continue
		}

		text := fmt.Sprintf("The ranks differ: in %s, %s differ first at request %d (%s)",
			s.Title, subject, d.RequestIndex, d.Kind)
		if len(d.MinorityRanks) > 0 {
			text += "; in the minority: " + ranklist.Ranks(d.MinorityRanks)
		}

		return text + "."
	}

	return "The ranks differ."
}

type builder struct {
	page          *page.Page
	frameIndexes  map[string]int32               // index in page.Frames, by text
	textIndexes   map[string]int32               // index in page.Texts, by text
	pathIndexes   map[pathKey]int                // index in page.Paths
	indexesByRank map[*history.Rank]*pageIndexes // set by findHistories

	progress                func(done, total int) // see Build
	doneEvents, totalEvents int                   // for progress
}

// pageIndexes maps the stacks and texts of one rank to the page: stacks[i] is the index in the
// page of the rank's stack i, or -1 if the page does not contain the stack yet.
type pageIndexes struct{ stacks, texts []int32 }

// findHistories returns the history of each rank, or nil for a rank that was not compared. It also
// sets b.indexesByRank.
func (b *builder) findHistories(r *diff.Report) []*history.Rank {
	b.indexesByRank = map[*history.Rank]*pageIndexes{}
	ranks := make([]*history.Rank, len(r.Ranks))
	for i := range r.Sequences {
		for _, m := range r.Sequences[i].Members {
			ranks[m.RankIndex] = m.History
			if b.indexesByRank[m.History] == nil {
				b.indexesByRank[m.History] = &pageIndexes{
					newIndexes(len(m.History.Stacks)), newIndexes(len(m.History.Texts)),
				}
			}
		}
	}

	return ranks
}

func newIndexes(count int) []int32 {
	all := make([]int32, count)
	for i := range all {
		all[i] = -1
	}

	return all
}

func (b *builder) addSequence(s *diff.SequenceResult) {
	p := page.Sequence{
		Title: s.Title, Calls: s.Class == history.Calls, Equal: s.EqualRequests, Notes: s.Notes,
		Differences: []page.Difference{},
	}
	p.Differences = appendDifference(p.Differences, "requests", s.RequestDifference)
	p.Differences = appendDifference(p.Differences, "places", s.PlacementDifference)
	if s.Replay != nil && (s.RequestDifference != nil || s.PlacementDifference != nil) {
		p.Notes = append(p.Notes, "replay: "+s.Replay.SymmemText)
		if s.Replay.PyTorchText != "" {
			p.Notes = append(p.Notes, "replay: "+s.Replay.PyTorchText)
		}
	}

	for i := range s.Members {
		m := &s.Members[i]
		if m.Sequence == nil {
			continue
		}

		p.Tracks = append(p.Tracks, b.newTrack(m))
		if p.Calls {
			b.countPaths(s, m)
		}
	}

	b.page.Sequences = append(b.page.Sequences, p)
}

// appendDifference appends a difference between requests or places (the subject), unless it is
// nil.
func appendDifference(all []page.Difference, subject string, d *diff.Difference) []page.Difference {
	if d == nil {
		return all
	}

	p := page.Difference{
		Subject: subject, Kind: d.Kind, Request: d.RequestIndex, Blamed: d.MinorityRanks,
		Before: d.PrecedingRequests, Explanation: d.Explanation,
	}
	for _, v := range d.Variants {
		p.Variants = append(p.Variants, page.Variant{
			Ranks: v.Ranks, Text: v.Text, Kind: v.DifferenceKind, Stack: v.Stack,
		})
	}

	return append(all, p)
}

var pageKinds = map[history.Action]page.Kind{
	history.Alloc: page.Alloc, history.Free: page.Free, history.FreeCompleted: page.FreeDone,
	history.MapSegment: page.SegmentAdd, history.UnmapSegment: page.SegmentRemove,
	history.Call: page.Call,
}

const progressInterval = 1 << 14 // number of events between two calls of progress

// newTrack returns the events of a pool or group on one rank. Its request 0 is the first compared
// request, so the number of its first request is negative if requests were skipped.
func (b *builder) newTrack(m *diff.Member) *page.Track {
	t := &page.Track{Rank: m.RankIndex, First: -m.SkippedRequests, Segments: segmentsOf(m.Sequence)}
	for _, block := range m.Sequence.InitialBlocks {
		t.Add(&page.Event{
			Kind: page.Older, Size: block.Size, Offset: block.Offset, Segment: block.Segment,
			Block: -1, Stack: -1,
		})
	}

	for i := range m.Sequence.Events {
		e := &m.Sequence.Events[i]
		p := page.Event{
			Kind: pageKinds[e.Action], Size: e.Size, Bytes: e.Bytes, Offset: e.Offset, Segment: e.Segment,
			Stream: e.Stream, Block: e.Block, Stack: b.findOrAddStack(m.History, e.Stack), Number: e.Number,
			Time: e.UnixMicro,
		}
		if e.Action == history.Call {
			p.Block = b.findOrAddRankText(m.History, e.Block)
		}

		t.Add(&p)
		b.doneEvents++
		if b.progress != nil && b.doneEvents%progressInterval == 0 {
			b.progress(b.doneEvents, b.totalEvents)
		}
	}

	return t
}

// segmentsOf returns the segments of a sequence, extended to the end of their last blocks, because
// traces do not contain all segment sizes.
func segmentsOf(s *history.Sequence) []page.Segment {
	all := make([]page.Segment, len(s.Segments))
	for i, segment := range s.Segments {
		all[i] = page.Segment{Bytes: segment.Bytes, Initial: segment.IsInitial}
	}

	for i := range s.Events {
		e := &s.Events[i]
		if e.Segment >= 0 && int(e.Segment) < len(all) && e.Action == history.Alloc {
			bytes := &all[e.Segment].Bytes
			*bytes = max(*bytes, e.Offset+max(e.Size, e.Bytes))
		}
	}

	for _, block := range s.InitialBlocks {
		if int(block.Segment) < len(all) {
			bytes := &all[block.Segment].Bytes
			*bytes = max(*bytes, block.Offset+block.Size)
		}
	}

	return all
}

// findOrAddStack returns the index in the page of a rank's stack, or -1 if the stack is unknown.
// It adds a new stack.
func (b *builder) findOrAddStack(r *history.Rank, stack int32) int32 {
	added := b.indexesByRank[r].stacks
	if stack < 0 || int(stack) >= len(added) {
		return -1
	}

	if added[stack] < 0 {
		frames := make([]int32, 0, len(r.Stacks[stack]))
		for _, i := range r.Stacks[stack] {
			frames = append(frames, findOrAddText(b.frameIndexes, &b.page.Frames, r.Frames[i].String()))
		}

		added[stack] = b.page.AddStack(frames)
	}

	return added[stack]
}

// findOrAddRankText returns the index in the page of a rank's text, or of "?" if the text is
// unknown. It adds a new text.
func (b *builder) findOrAddRankText(r *history.Rank, text int32) int32 {
	added := b.indexesByRank[r].texts
	if text < 0 || int(text) >= len(added) {
		return findOrAddText(b.textIndexes, &b.page.Texts, "?")
	}

	if added[text] < 0 {
		added[text] = findOrAddText(b.textIndexes, &b.page.Texts, r.Texts[text])
	}

	return added[text]
}

// findOrAddText is history.FindOrAddText for a text that is made printable first.
func findOrAddText(known map[string]int32, all *[]string, text string) int32 {
	return history.FindOrAddText(known, all, history.MakePrintable(text))
}
