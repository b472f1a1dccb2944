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

// A browser first gets the page without data. The script of the page then requests the data from
// dataPath, again and again. The data describe the ranks of this machine: their pools, their
// groups, and the calls in which they wait for others.

// pageEvents is the number of latest events that the page shows for each pool.
const pageEvents = 4096

// writeEmptyPage writes the page without data.
func writeEmptyPage(w http.ResponseWriter) {
	var text bytes.Buffer
	source := strings.TrimPrefix(dataPath, "/") // relative to the page
	if err := page.WriteShell(&text, "symmem", source); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}

	w.Header().Set("Content-Security-Policy", page.Policy()+"; frame-ancestors 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(text.Bytes()) // fails if the client has disconnected
}

// writeData writes the page's data, or status 304 (Not Modified) if the browser has the same data.
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

// pageBuilder translates the states of a machine's ranks to a page. The rows of the page identify a
// rank by its index in machine.Ranks.
type pageBuilder struct {
	machine *Machine
	page    *page.Page
}

// buildPage returns the page for the states in m.
func buildPage(m *Machine) *page.Page {
	eventsNote := fmt.Sprintf("The page shows the latest %d events of each pool. Blocks that were "+
		"allocated before these events are shown only if they have been freed.", pageEvents)
	callsNote := "Counts of calls include replays of graphs, which are not timed. " +
		"The page /status shows the times of calls."
	r := &pageBuilder{machine: m, page: &page.Page{
		Title: fmt.Sprintf("symmem: %d ranks on %s", len(m.Ranks), m.Host),
		Live:  true,
		Agree: true, // addPools changes it if ranks differ
		Notes: []string{eventsNote, callsNote},
	}}
	for i := range m.Ranks {
		r.addRank(i, &m.Ranks[i])
	}

	r.addPools()
	r.sortRows()
	r.page.Verdict = r.verdict()
	return r.page
}

// addRank adds the rank with the given index, its waits and its groups.
func (r *pageBuilder) addRank(index int, s *Snapshot) {
	r.page.Ranks = append(r.page.Ranks, newPageRank(s))
	for i := range s.Waits {
		r.addWait(index, &s.Waits[i])
	}

	for i := range s.Groups {
		r.addGroup(index, &s.Groups[i])
	}
}

// newPageRank returns the description of a rank.
func newPageRank(s *Snapshot) page.Rank {
	rank := page.Rank{
		Rank:   s.Rank,
		File:   fmt.Sprintf("process %d", s.Process),
		Format: s.Backend + ": " + s.Device,
		Notes:  []string{},
	}
	hasNoAnswer := s.Error != ""
	if hasNoAnswer {
		rank.File = "no answer"
		rank.Format = ""
		rank.Notes = []string{s.Error}
	}

	for i := range s.Pools {
		rank.Events += len(s.Pools[i].Recent)
	}

	return rank
}

// addWait adds a call in which the rank with the given index waits for other ranks.
func (r *pageBuilder) addWait(index int, w *Wait) {
	text := fmt.Sprintf("%s waits for %s", w.InCall, formatRanks(w.Ranks))
	for _, other := range w.Ranks {
		if activity := w.Activity[other]; activity != "" {
			text += fmt.Sprintf("; rank %d: %s", other, activity)
		}
	}

	r.page.Pending = append(r.page.Pending, page.Row{
		Ranks: []int{index},
		Group: w.Group,
		Text:  text,
		Time:  w.Since.UnixMicro(),
	})
}

// addGroup adds what the rank with the given index reports for a group: a fault, and counts of
// calls for each path. A path is a way in which symmem executes calls.
func (r *pageBuilder) addGroup(index int, g *Group) {
	if g.Fault != "" {
		fault := page.Row{Ranks: []int{index}, Group: g.ID, Text: g.Fault}
		r.page.Faults = append(r.page.Faults, fault)
	}

	// Calls has an entry for each range of sizes. The row of the operation and path adds them up.
	for i := range g.Calls {
		c := &g.Calls[i]
		row := r.ensurePathRow(g.ID, c.Operation, c.Path)
		row.Calls[index] += int64(c.Calls)
		row.Bytes[index] += int64(c.Bytes)
	}

	for path, count := range g.Paths { // in any order: sortRows sorts the rows
		row := r.ensurePathRow(g.ID, "all, including replays of graphs", path)
		row.Calls[index] += int64(count)
	}
}

// ensurePathRow returns the row for a group, an operation and a path. It adds the row if there is
// none. The pointer is valid until another row is added.
func (r *pageBuilder) ensurePathRow(group, operation, path string) *page.Path {
	for i := range r.page.Paths {
		p := &r.page.Paths[i]
		if p.Group == group && p.Operation == operation && p.Path == path {
			return p
		}
	}

	n := len(r.machine.Ranks)
	r.page.Paths = append(r.page.Paths, page.Path{
		Group:     group,
		Operation: operation,
		Path:      path,
		Calls:     make([]int64, n),
		Bytes:     make([]int64, n),
	})
	return &r.page.Paths[len(r.page.Paths)-1]
}

// sortRows sorts the waits by their start, and the rows of paths by group, operation and path.
func (r *pageBuilder) sortRows() {
	slices.SortStableFunc(r.page.Pending, func(a, b page.Row) int {
		return cmp.Compare(a.Time, b.Time)
	})
	slices.SortStableFunc(r.page.Paths, func(a, b page.Path) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Operation, b.Operation),
			cmp.Compare(a.Path, b.Path))
	})
}

// verdict describes the worst problem of the job in one sentence. Call it after sortRows, so that
// the first wait is the longest.
func (r *pageBuilder) verdict() string {
	silentCount := 0 // number of ranks without an answer
	for i := range r.machine.Ranks {
		if r.machine.Ranks[i].Error != "" {
			silentCount++
		}
	}

	switch {
	case len(r.page.Faults) > 0:
		return "A group has failed: " + r.page.Faults[0].Text
	case !r.page.Agree:
		return "The ranks differ in the latest events of a pool."
	case silentCount > 0:
		return fmt.Sprintf("%d of %d ranks do not answer.", silentCount, len(r.machine.Ranks))
	case len(r.page.Pending) > 0:
		wait := &r.page.Pending[0]
		index := wait.Ranks[0] // addWait sets one index
		waitingRank := r.page.Ranks[index].Rank
		return fmt.Sprintf("Rank %d has waited longest: %s", waitingRank, wait.Text)
	}

	return "The ranks agree, and no rank waits for another."
}
