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
	Ranks int // expected number
	// ExpectAll is set if every rank without a result is at fault. Otherwise, this rank may be
	// unable to receive the result.
	ExpectAll bool
	Exits     map[int]string // how ranks without a result exited
	// FirstExit is the first rank that exited without a result, or -1. Its exit may have stopped
	// other ranks.
	FirstExit    int
	Tolerance    float64       // fraction of the expected speed that a link or call must reach
	MinLinkSpeed float64       // bytes per second that every link must reach
	Table        *tuning.Table // or nil
}

// Judge converts the ranks' results to a report.
func Judge(results []RankResult, o Options) *Report {
	j := &reportBuilder{Options: o, results: make([]*RankResult, o.Ranks), report: &Report{
		Ranks: o.Ranks, NodeOfRank: make([]string, o.Ranks), Faults: []Fault{}, Warnings: []string{},
		Calls: []Call{}, Links: []Link{},
	}}
	report := j.report
	for i := range results {
		r := &results[i]
		if r.Rank < 0 || r.Rank >= o.Ranks {
			continue
		}

		j.results[r.Rank] = r
		report.NodeOfRank[r.Rank], report.Backend, report.Source = r.Node, r.Backend, r.Source
		report.Links = append(report.Links, r.Links...)
	}

	j.judgeMachines()
	j.judgeMissing()
	j.judgeErrors()
	j.judgeCalls()
	j.judgeLinks()
	order := []Kind{KindNode, KindRank, KindLink, KindJob}
	slices.SortStableFunc(report.Faults, func(a, b Fault) int {
		return slices.Index(order, a.Kind) - slices.Index(order, b.Kind)
	})
	report.IsReady = len(report.Faults) == 0
	return report
}

type reportBuilder struct {
	Options
	results []*RankResult // by rank; nil for a rank without a result
	report  *Report
}

func (j *reportBuilder) add(f Fault) { j.report.Faults = append(j.report.Faults, f) }

func (j *reportBuilder) addRank(rank int, advice, text string) {
	f := Fault{Kind: KindRank, Ranks: []int{rank}, Text: text, Advice: advice}
	if r := j.results[rank]; r != nil {
		f.Node, f.GPU = r.Node, r.GPU
	}

	j.add(f)
}

func (j *reportBuilder) judgeMachines() {
	for _, r := range j.results {
		if r == nil {
			continue
		}

		for _, f := range r.NodeProblems {
			text := fmt.Sprintf("node %s: %s", r.Node, f.Text)
			if f.Level == doctor.Fail {
				j.add(Fault{Kind: KindNode, Node: r.Node, Text: text, Advice: f.Advice})
			} else {
				j.report.Warnings = append(j.report.Warnings, text+" (to do: "+f.Advice+")")
			}
		}
	}
}

const adviceRank = "look at the output of this rank and at its GPU and node; exclude them if the " +
	"fault repeats"

// judgeMissing adds a fault for each rank without a result, unless another rank may be the cause.
func (j *reportBuilder) judgeMissing() {
	for rank, r := range j.results {
		isFirst := rank == j.FirstExit || j.FirstExit < 0 && j.ExpectAll
		if r != nil || !isFirst && len(j.accusers(rank)) == 0 {
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

func (j *reportBuilder) accusers(rank int) (all []*RankResult) {
	for _, r := range j.results {
		if r != nil && slices.Contains(j.culprits(r), rank) {
			all = append(all, r)
		}
	}

	return all
}

// culprits returns the ranks to blame for the error of r: those at the ends of its chains of blame.
// A rank whose wait has failed exits, so that others blame it instead of the rank that it blames.
func (j *reportBuilder) culprits(r *RankResult) (all []int) {
	visited := []int{r.Rank}
	for blamed := slices.Clone(r.BlamedRanks); len(blamed) > 0; blamed = blamed[1:] {
		rank := blamed[0]
		if rank < 0 || rank >= j.Ranks || slices.Contains(visited, rank) {
			continue
		}

		visited = append(visited, rank)
		if next := j.results[rank]; hasError(next) && len(next.BlamedRanks) > 0 {
			blamed = append(blamed, next.BlamedRanks...)
		} else {
			all = append(all, rank)
		}
	}

	if len(all) == 0 { // r blames no rank, or ranks blame each other
		return r.BlamedRanks
	}

	return all
}

// judgeErrors adds faults for the ranks' errors. A rank whose error blames no other rank is at
// fault, unless preflight's deadline has passed. A rank was late if more than half of the other
// ranks with errors blame it, directly or through ranks that they blame.
func (j *reportBuilder) judgeErrors() {
	for rank, r := range j.results {
		if r == nil {
			continue
		}

		accusers := j.accusers(rank)
		switch {
		case r.Error != "" && len(r.BlamedRanks) == 0 && !r.IsDeadlinePassed:
			j.addRank(rank, adviceRank, fmt.Sprintf("rank %d: %s", rank, r.Error))
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

func hasError(r *RankResult) bool { return r != nil && r.Error != "" }

func (j *reportBuilder) countOtherErrors(rank int) (n int) {
	for _, r := range j.results {
		if hasError(r) && r.Rank != rank {
			n++
		}
	}

	return n
}

func (j *reportBuilder) judgeCalls() {
	first := j.results[0]
	if first == nil || slices.Contains(j.results, nil) || slices.ContainsFunc(j.results, hasError) {
		return
	}

	if j.Table != nil {
		j.report.TableName = j.Table.Name()
	}

	for i := range first.Calls {
		j.judgeCall(i)
	}
}

func (j *reportBuilder) judgeCall(i int) {
	c := j.results[0].Calls[i]
	call := Call{Operation: c.Operation, Bytes: c.Bytes, RequestedPath: c.RequestedPath, Path: c.Path}
	var wrong []int
	for _, r := range j.results {
		if i >= len(r.Calls) {
			continue
		}

		call.Microseconds = max(call.Microseconds, r.Calls[i].Microseconds)
		if r.Calls[i].WrongCount > 0 {
			call.WrongElements += r.Calls[i].WrongCount
			wrong = append(wrong, r.Rank)
		}
	}

	call.TableMicroseconds = j.tableTime(&call)
	j.report.Calls = append(j.report.Calls, call)
	name := fmt.Sprintf("%s of %d B on the %s path", c.Operation, c.Bytes, c.Path)
	switch {
	case call.WrongElements > 0:
		j.add(Fault{
			Kind: KindJob, Text: fmt.Sprintf("%s: wrong sums on %s", name, ranklist.Ranks(wrong)),
			Advice: "run symmem verify --check off for details",
		})
	case call.TableMicroseconds >= minTableMicroseconds &&
		call.Microseconds*j.Tolerance > call.TableMicroseconds:
		j.add(Fault{
			Kind: KindJob, Text: fmt.Sprintf("%s took %s, but the %s has %s", name,
				doctor.FormatMicroseconds(call.Microseconds), j.report.TableName,
				doctor.FormatMicroseconds(call.TableMicroseconds)),
			Advice: "look for other programs on the nodes, or run symmem tune again",
		})
	case c.RequestedPath != c.Path:
		j.report.Warnings = append(j.report.Warnings, fmt.Sprintf("%s of %d B took the %s path, "+
			"although the %s path was requested: %s", c.Operation, c.Bytes, c.Path, c.RequestedPath,
			c.PathReason))
	}
}

// Calls shorter than minTableMicroseconds are not compared with the table, because a measured time
// includes the launch, but the table's times do not.
const minTableMicroseconds = 50

// tableTime returns a call's time in the tuning table, or 0 if the table does not contain the call.
func (j *reportBuilder) tableTime(c *Call) float64 {
	if j.Table == nil || c.RequestedPath != c.Path {
		return 0
	}

	nodes := j.report.countNodes()
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

const adviceLink = "look for errors: within a node, run nvidia-smi nvlink -e; between nodes, " +
	"examine the ports and cables of the network"

func (j *reportBuilder) judgeLinks() {
	node := func(rank int) string { return j.report.NodeOfRank[rank] }
	for _, l := range j.report.Links {
		if l.WrongBytes > 0 {
			j.add(Fault{
				Kind: KindLink, Ranks: []int{l.From, l.To},
				Text: fmt.Sprintf("link between ranks %d and %d: rank %d received %d wrong bytes", l.From,
					l.To, l.From, l.WrongBytes),
				Advice: "exclude the GPUs of both ranks until the link is repaired",
			})
		}

		if l.BytesPerSecond < j.MinLinkSpeed {
			j.add(Fault{
				Kind: KindLink, Ranks: []int{l.From, l.To},
				Text: fmt.Sprintf("link between ranks %d (node %s) and %d (node %s) is slow: %.3g GB/s, but "+
					"%.3g GB/s are required", l.From, node(l.From), l.To, node(l.To), l.BytesPerSecond/1e9,
					j.MinLinkSpeed/1e9),
				Advice: adviceLink,
			})
		}
	}

	slow := slowLinks(slices.Clone(j.report.Links), node, j.Tolerance)
	ranks, slow := blameSlowLinks(slow, j.report.Links)
	for _, rank := range ranks {
		j.addRank(rank, "look for other programs and for errors of this GPU and node; exclude them if "+
			"the fault repeats", fmt.Sprintf("the links of rank %d have less than %.0f%% of the speed of "+
			"other links", rank, 100*j.Tolerance))
	}

	for _, l := range slow {
		j.add(Fault{
			Kind: KindLink, Ranks: []int{l.From, l.To},
			Text: fmt.Sprintf("link between ranks %d (node %s) and %d (node %s) is slow: %.3g GB/s, but "+
				"fast links have %.3g GB/s", l.From, node(l.From), l.To, node(l.To), l.BytesPerSecond/1e9,
				l.fast.BytesPerSecond/1e9),
			Advice: adviceLink,
		})
	}
}
