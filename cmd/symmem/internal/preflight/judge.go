package preflight

import (
	"fmt"
	"slices"

	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/ranklist"
	"symmem/internal/tuning"
)

// Options configures Judge.
type Options struct {
	// Ranks is the expected number of ranks.
	Ranks int
	// ExpectAll is set if all ranks were asked for their results, so that a rank without a result is
	// at fault. If it is not set, a result may be missing because its rank could not be reached.
	ExpectAll bool
	// Exits describes how the ranks without a result exited, as far as that is known.
	Exits map[int]string
	// FirstExit is the first rank that exited without a result, or -1. Other ranks without a result may
	// have been stopped as a consequence.
	FirstExit int
	// Tolerance is the fraction of the expected speed below which a link or a call is at fault.
	Tolerance float64
	// MinLinkSpeed is the speed below which every link is at fault, in bytes per second.
	MinLinkSpeed float64
	// Table is the tuning table, or nil.
	Table *tuning.Table
}

// Judge converts the ranks' results to a report.
func Judge(results []RankResult, o Options) *Report {
	j := &judge{Options: o, results: make([]*RankResult, o.Ranks), report: &Report{
		Ranks: o.Ranks, Nodes: make([]string, o.Ranks), Faults: []Fault{}, Warnings: []string{},
		Calls: []Call{}, Links: []Link{},
	}}
	r := j.report
	for i := range results {
		a := &results[i]
		if a.Rank < 0 || a.Rank >= o.Ranks {
			continue
		}
		j.results[a.Rank] = a
		r.Nodes[a.Rank], r.Backend, r.Source = a.Node, a.Backend, a.Source
		r.Links = append(r.Links, a.Links...)
	}
	j.machines()
	j.missing()
	j.errors()
	j.calls()
	j.links()
	order := []Kind{KindNode, KindRank, KindLink, KindJob}
	slices.SortStableFunc(r.Faults, func(a, b Fault) int {
		return slices.Index(order, a.Kind) - slices.Index(order, b.Kind)
	})
	r.OK = len(r.Faults) == 0
	return r
}

// judge builds a report.
type judge struct {
	Options
	results []*RankResult // by rank; nil for a rank without a result
	report  *Report
}

func (j *judge) add(f Fault) { j.report.Faults = append(j.report.Faults, f) }

func (j *judge) addRank(rank int, advice, text string) {
	f := Fault{Kind: KindRank, Ranks: []int{rank}, Text: text, Advice: advice}
	if a := j.results[rank]; a != nil {
		f.Node, f.GPU = a.Node, a.GPU
	}
	j.add(f)
}

func (j *judge) machines() {
	for _, a := range j.results {
		if a == nil {
			continue
		}
		for _, f := range a.Machine {
			text := fmt.Sprintf("node %s: %s", a.Node, f.Text)
			if f.Level == doctor.Fail {
				j.add(Fault{Kind: KindNode, Node: a.Node, Text: text, Advice: f.Advice})
			} else {
				j.report.Warnings = append(j.report.Warnings, text+" (to do: "+f.Advice+")")
			}
		}
	}
}

const adviceRank = "look at this rank's output and at its GPU and node; exclude them if it repeats"

// missing adds a fault for each rank without a result, unless that rank may have been stopped
// because of another rank.
func (j *judge) missing() {
	for rank, a := range j.results {
		isFirst := rank == j.FirstExit || j.FirstExit < 0 && j.ExpectAll
		if a != nil || !isFirst && !j.isBlamed(rank) {
			continue
		}
		text := fmt.Sprintf("rank %d did not report", rank)
		if exit := j.Exits[rank]; exit != "" {
			text = exit
		} else if accusers := j.accusers(rank); len(accusers) > 0 {
			text += ": " + accusers[0].Error
		}
		j.addRank(rank, adviceRank, text)
	}
}

// accusers returns the results whose errors blame a rank.
func (j *judge) accusers(rank int) (all []*RankResult) {
	for _, a := range j.results {
		if a != nil && slices.Contains(a.Blamed, rank) {
			all = append(all, a)
		}
	}
	return all
}

func (j *judge) isBlamed(rank int) bool { return len(j.accusers(rank)) > 0 }

// errors judges the ranks' errors. An error that blames no other rank is the rank's own fault,
// unless it was caused by the deadline of the whole preflight. A rank with a result counts as late
// if it is blamed by more than half of the other ranks that report errors.
func (j *judge) errors() {
	for rank, a := range j.results {
		if a == nil {
			continue
		}
		accusers := j.accusers(rank)
		switch {
		case a.Error != "" && len(a.Blamed) == 0 && !a.DeadlinePassed:
			j.addRank(rank, adviceRank, fmt.Sprintf("rank %d: %s", rank, a.Error))
		case len(accusers) > 0 && 2*len(accusers) > j.countOtherErrors(rank):
			j.addRank(rank, adviceRank, fmt.Sprintf("rank %d was late: rank %d: %s", rank,
				accusers[0].Rank, accusers[0].Error))
		}
	}
	if len(j.report.Faults) > 0 {
		return
	}
	if i := slices.IndexFunc(j.results, hasError); i >= 0 {
		j.add(Fault{
			Kind: KindJob, Text: fmt.Sprintf("rank %d: %s", i, j.results[i].Error),
			Advice: "look at the output of all ranks",
		})
	}
}

func hasError(a *RankResult) bool { return a != nil && a.Error != "" }

// countOtherErrors counts the ranks other than rank whose checks failed.
func (j *judge) countOtherErrors(rank int) (n int) {
	for _, a := range j.results {
		if a != nil && a.Rank != rank && a.Error != "" {
			n++
		}
	}
	return n
}

func (j *judge) calls() {
	first := j.results[0]
	if first == nil || slices.Contains(j.results, nil) || slices.ContainsFunc(j.results, hasError) {
		return
	}
	if j.Table != nil {
		j.report.Table = j.Table.Name()
	}
	for i := range first.Calls {
		j.call(i)
	}
}

func (j *judge) call(i int) {
	c := j.results[0].Calls[i]
	call := Call{Operation: c.Operation, Bytes: c.Bytes, RequestedPath: c.RequestedPath, Path: c.Path}
	var wrong []int
	for _, a := range j.results {
		if i >= len(a.Calls) {
			continue
		}
		call.MicroS = max(call.MicroS, a.Calls[i].MicroS)
		if a.Calls[i].Wrong > 0 {
			call.Wrong += a.Calls[i].Wrong
			wrong = append(wrong, a.Rank)
		}
	}
	call.TableMicroS = j.tableTime(&call)
	j.report.Calls = append(j.report.Calls, call)
	name := fmt.Sprintf("%s of %d B on the %s path", c.Operation, c.Bytes, c.Path)
	switch {
	case call.Wrong > 0:
		j.add(Fault{
			Kind: KindJob, Text: fmt.Sprintf("%s: wrong sums on %s", name, ranklist.Ranks(wrong)),
			Advice: "run symmem verify --check off for details",
		})
	case call.TableMicroS > 0 && call.MicroS*j.Tolerance > call.TableMicroS:
		j.add(Fault{
			Kind: KindJob, Text: fmt.Sprintf("%s takes %.4g us; the %s has %.4g us", name, call.MicroS,
				j.report.Table, call.TableMicroS),
			Advice: "look for other programs on the nodes, or run symmem tune again",
		})
	case c.RequestedPath != c.Path:
		j.report.Warnings = append(j.report.Warnings, fmt.Sprintf("%s of %d B took the %s path, "+
			"although the %s path was requested: %s", c.Operation, c.Bytes, c.Path, c.RequestedPath, c.Why))
	}
}

// tableTime returns a call's time in the tuning table, or 0 if the table has none.
func (j *judge) tableTime(c *Call) float64 {
	if j.Table == nil || c.RequestedPath != c.Path {
		return 0
	}
	nodes := j.report.nodes()
	for _, memory := range []tuning.Memory{"", tuning.Symmetric} {
		points := j.Table.Measured(tuning.Calls{
			Operation: c.Operation, Shape: tuning.Shape{Ranks: j.Ranks, Machines: nodes}, Memory: memory,
		})
		for _, p := range points {
			us := map[string]float64{"plain": p.PlainUS, "window": p.WindowUS, "direct": p.DirectUS}[c.Path]
			if int64(p.Bytes) == c.Bytes && p.InPlace && us > 0 {
				return us
			}
		}
	}
	return 0
}

const adviceLink = "look for errors: within a node with nvidia-smi nvlink -e, between nodes at " +
	"the ports and cables of the network"

func (j *judge) links() {
	node := func(rank int) string { return j.report.Nodes[rank] }
	for _, l := range j.report.Links {
		if l.Wrong > 0 {
			j.add(Fault{
				Kind: KindLink, Ranks: []int{l.From, l.To},
				Text: fmt.Sprintf("link between ranks %d and %d: %d bytes arrived wrong", l.From, l.To,
					l.Wrong),
				Advice: "exclude both ranks' GPUs until the link is repaired",
			})
		}
		if l.BytesPerS < j.MinLinkSpeed {
			j.add(Fault{
				Kind: KindLink, Ranks: []int{l.From, l.To},
				Text: fmt.Sprintf("link between ranks %d (node %s) and %d (node %s) is slow: %.3g GB/s, but "+
					"%.3g were required", l.From, node(l.From), l.To, node(l.To), l.BytesPerS/1e9,
					j.MinLinkSpeed/1e9),
				Advice: adviceLink,
			})
		}
	}
	slow := slowLinks(slices.Clone(j.report.Links), node, j.Tolerance)
	ranks, slow := blameSlowLinks(slow, j.report.Links)
	for _, rank := range ranks {
		j.addRank(rank, "look for other programs and for errors of this GPU and node; exclude it if it "+
			"repeats", fmt.Sprintf("links of rank %d are slow: less than %.0f%% of the speed of others",
			rank, 100*j.Tolerance))
	}
	for _, l := range slow {
		j.add(Fault{
			Kind: KindLink, Ranks: []int{l.From, l.To},
			Text: fmt.Sprintf("link between ranks %d (node %s) and %d (node %s) is slow: %.3g GB/s, others "+
				"of its kind %.3g GB/s", l.From, node(l.From), l.To, node(l.To), l.BytesPerS/1e9, l.fast/1e9),
			Advice: adviceLink,
		})
	}
}
