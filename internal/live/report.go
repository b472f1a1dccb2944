package live

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"symmem/internal/page"
)

const pageEventLimit = 4096 // per pool

// writeShell writes the page without data. A script on the page polls dataPath.
func writeShell(w http.ResponseWriter) {
	var text bytes.Buffer
	relativePath := strings.TrimPrefix(dataPath, "/")
	if err := page.WriteShell(&text, "symmem", relativePath); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}

	w.Header().Set("Content-Security-Policy", page.Policy()+"; frame-ancestors 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text.Bytes()) // fails if the client has disconnected
}

// writeData writes the data of the page, unless the browser already has the same data.
func writeData(w http.ResponseWriter, request *http.Request, m Machine) {
	var data bytes.Buffer
	if err := buildPage(&m).WriteData(&data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}

	hash := sha256.Sum256(data.Bytes())
	etag := `"` + hex.EncodeToString(hash[:16]) + `"`
	w.Header().Set("ETag", etag)
	if request.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}

	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(data.Bytes()) // fails if the client has disconnected
}

// pageBuilder builds a page from the states of ranks. Rows of the page identify a rank by
// rankIndex, its index in machine.Ranks.
type pageBuilder struct {
	machine *Machine
	page    *page.Page
}

func buildPage(m *Machine) *page.Page {
	eventsNote := fmt.Sprintf("The page shows the latest %d events of each pool. An older block "+
		"appears only if one of these events frees it.", pageEventLimit)
	callsNote := "Counts of calls include calls in replays of graphs. The page /status shows the " +
		"times of other calls."
	pb := &pageBuilder{machine: m, page: &page.Page{
		Title: fmt.Sprintf("symmem: %d ranks on %s", len(m.Ranks), m.Host),
		Live:  true,
		Agree: true, // unless addPools finds a difference
		Notes: []string{eventsNote, callsNote},
	}}
	for i := range m.Ranks {
		pb.addRank(i, &m.Ranks[i])
	}

	pb.addPools()
	pb.sortRows()
	pb.page.Verdict = pb.verdict()
	return pb.page
}

func (pb *pageBuilder) addRank(rankIndex int, s *Snapshot) {
	pb.page.Ranks = append(pb.page.Ranks, newPageRank(s))
	for i := range s.Waits {
		pb.addWait(rankIndex, &s.Waits[i])
	}

	for i := range s.Groups {
		pb.addGroup(rankIndex, &s.Groups[i])
	}
}

func newPageRank(s *Snapshot) page.Rank {
	rank := page.Rank{Rank: s.Rank, Notes: []string{}}
	isSilent := s.Error != ""
	if isSilent {
		rank.File = "no answer"
		rank.Notes = []string{s.Error}
	} else {
		rank.File = fmt.Sprintf("process %d", s.Process)
		rank.Format = s.Backend + ": " + s.Device
	}

	for i := range s.Pools {
		rank.Events += len(s.Pools[i].Recent)
	}

	return rank
}

func (pb *pageBuilder) addWait(rankIndex int, w *Wait) {
	text := fmt.Sprintf("%s waits for %s", w.InCall, formatRanks(w.Ranks))
	for _, other := range w.Ranks {
		if activity := w.Activity[other]; activity != "" {
			text += fmt.Sprintf("; rank %d: %s", other, activity)
		}
	}

	pb.page.Pending = append(pb.page.Pending, page.Row{
		Ranks: []int{rankIndex},
		Group: w.Group,
		Text:  text,
		Time:  w.Since.UnixMicro(),
	})
}

func (pb *pageBuilder) addGroup(rankIndex int, g *Group) {
	if g.Fault != "" {
		fault := page.Row{Ranks: []int{rankIndex}, Group: g.ID, Text: g.Fault}
		pb.page.Faults = append(pb.page.Faults, fault)
	}

	for i := range g.Calls {
		c := &g.Calls[i]
		row := pb.ensurePathRow(g.ID, c.Operation, c.Path) // of all ranges of sizes
		row.Calls[rankIndex] += int64(c.Calls)
		row.Bytes[rankIndex] += int64(c.Bytes)
	}

	for path, count := range g.Paths { // in random order; sortRows sorts the rows
		row := pb.ensurePathRow(g.ID, "all, including replays of graphs", path)
		row.Calls[rankIndex] += int64(count)
	}
}

// ensurePathRow finds or adds a row. The pointer is valid until the next call.
func (pb *pageBuilder) ensurePathRow(group, operation, path string) *page.Path {
	for i := range pb.page.Paths {
		p := &pb.page.Paths[i]
		if p.Group == group && p.Operation == operation && p.Path == path {
			return p
		}
	}

	rankCount := len(pb.machine.Ranks)
	pb.page.Paths = append(pb.page.Paths, page.Path{
		Group:     group,
		Operation: operation,
		Path:      path,
		Calls:     make([]int64, rankCount),
		Bytes:     make([]int64, rankCount),
	})
	return &pb.page.Paths[len(pb.page.Paths)-1]
}

func (pb *pageBuilder) sortRows() {
	slices.SortStableFunc(pb.page.Pending, func(a, b page.Row) int {
		return cmp.Compare(a.Time, b.Time)
	})
	slices.SortStableFunc(pb.page.Paths, func(a, b page.Path) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Operation, b.Operation),
			cmp.Compare(a.Path, b.Path))
	})
}

// verdict describes the worst problem of the job. Pending must be sorted, oldest wait first.
func (pb *pageBuilder) verdict() string {
	silentCount := 0
	for i := range pb.machine.Ranks {
		if pb.machine.Ranks[i].Error != "" {
			silentCount++
		}
	}

	switch {
	case len(pb.page.Faults) > 0:
		return "A group has failed: " + pb.page.Faults[0].Text
	case !pb.page.Agree:
		return "The ranks differ in the latest events of a pool."
	case silentCount > 0:
		return fmt.Sprintf("%d of %d ranks do not answer.", silentCount, len(pb.machine.Ranks))
	case len(pb.page.Pending) > 0:
		wait := &pb.page.Pending[0]
		rankIndex := wait.Ranks[0] // addWait lists only the waiting rank
		waitingRank := pb.page.Ranks[rankIndex].Rank
		return fmt.Sprintf("Rank %d has waited longest: %s", waitingRank, wait.Text)
	}

	return "The ranks agree, and no rank waits for another."
}
