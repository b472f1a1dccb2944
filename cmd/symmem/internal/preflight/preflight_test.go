package preflight

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"symmem/cmd/symmem/internal/doctor"
	"symmem/internal/tuning"
)

// job returns the results of a healthy job on the given number of nodes, with perNode ranks on
// each. Links within nodes carry 300 GB/s, and links between nodes carry 50 GB/s.
func job(nodes, perNode int) []RankResult {
	var all []RankResult
	ranks := nodes * perNode
	for rank := range ranks {
		a := RankResult{
			Rank: rank, Node: fmt.Sprint("node", rank/perNode), GPU: fmt.Sprint("GPU ", rank%perNode),
			Backend: "nccl", Device: "H100",
			Calls: []doctor.TrialCall{{
				Operation: "AllReduce", Bytes: 1 << 24, RequestedPath: "plain", Path: "plain",
				Microseconds: 100,
			}},
		}
		for peer := rank + 1; peer < ranks; peer++ {
			speed := 300e9
			if peer/perNode != rank/perNode {
				speed = 50e9
			}

			a.Links = append(a.Links, Link{From: rank, To: peer, BytesPerSecond: speed})
		}

		all = append(all, a)
	}

	return all
}

// slowDown divides the speed of the links for which slow returns true by four.
func slowDown(results []RankResult, slow func(l Link) bool) {
	for _, a := range results {
		for i := range a.Links {
			if slow(a.Links[i]) {
				a.Links[i].BytesPerSecond /= 4
			}
		}
	}
}

func judgeJob(results []RankResult, ranks int) *Report {
	return Judge(results, Options{Ranks: ranks, Tolerance: 0.5, FirstExit: -1, ExpectAll: true})
}

func TestHealthyJobIsReady(t *testing.T) {
	for _, shape := range [][2]int{{1, 1}, {1, 2}, {1, 8}, {4, 2}} {
		r := judgeJob(job(shape[0], shape[1]), shape[0]*shape[1])
		if !r.IsReady || r.ExitCode() != 0 || len(r.Calls) != 1 || r.countNodes() != shape[0] {
			t.Errorf("%v: report = %+v; want no fault", shape, r)
		}
	}
}

// fault holds the parts of a Fault that tests compare.
type fault struct {
	kind  Kind
	node  string
	ranks []int
}

// faulty lists changes to the results of a healthy job on two nodes with four ranks each.
var faulty = map[string]struct {
	change func([]RankResult) []RankResult
	want   []fault
	code   int
}{
	"slow link within a node": {
		func(a []RankResult) []RankResult {
			slowDown(a, func(l Link) bool { return l.From == 1 && l.To == 3 })
			return a
		}, []fault{{KindLink, "", []int{1, 3}}}, 5,
	},
	"slow GPU": {
		func(a []RankResult) []RankResult {
			slowDown(a, func(l Link) bool { return l.From == 5 || l.To == 5 })
			return a
		}, []fault{{KindRank, "node1", []int{5}}}, 4,
	},
	"slow link and slow GPU": {
		func(a []RankResult) []RankResult {
			slowDown(a, func(l Link) bool { return l.From == 5 || l.To == 5 || l.From == 1 && l.To == 2 })
			return a
		}, []fault{{KindRank, "node1", []int{5}}, {KindLink, "", []int{1, 2}}}, 4,
	},
	"wrong bytes": {
		func(a []RankResult) []RankResult {
			a[2].Links[0].WrongBytes = 7
			return a
		}, []fault{{KindLink, "", []int{2, 3}}}, 5,
	},
	"broken node": {
		func(a []RankResult) []RankResult {
			a[4].NodeProblems = []doctor.Finding{{Level: doctor.Fail, Text: "memfd", Advice: "allow it"}}
			return a
		}, []fault{{KindNode, "node1", nil}}, 3,
	},
	"wrong sum": {
		func(a []RankResult) []RankResult {
			a[6].Calls[0].WrongCount = 1
			return a
		}, []fault{{KindJob, "", nil}}, 1,
	},
	"rank without NCCL": {
		func(a []RankResult) []RankResult {
			for i := range a {
				a[i].Error, a[i].BlamedRanks, a[i].Links = "waited for rank 3", []int{3}, nil
			}

			a[3].Error, a[3].BlamedRanks = "no libnccl.so.2", nil
			return a
		}, []fault{{KindRank, "node0", []int{3}}}, 4,
	},
	"late rank": {
		func(a []RankResult) []RankResult {
			for i := range a {
				a[i].Error, a[i].BlamedRanks, a[i].Links = "waited for rank 3", []int{3}, nil
			}

			a[3].Error, a[3].BlamedRanks = "group has failed", []int{0}
			return a
		}, []fault{{KindRank, "node0", []int{3}}}, 4,
	},
	"late rank whose victims exit one by one": {
		func(a []RankResult) []RankResult {
			for i := range a {
				a[i].Error, a[i].BlamedRanks, a[i].Links = "rank 0 was lost", []int{0}, nil
			}

			a[0].Error, a[0].BlamedRanks = "waited for rank 3", []int{3}
			a[3].Error, a[3].BlamedRanks, a[3].IsDeadlinePassed = "interrupted", nil, true
			return a
		}, []fault{{KindRank, "node0", []int{3}}}, 4,
	},
	"killed rank": {
		func(a []RankResult) []RankResult {
			for i := range a {
				a[i].Error, a[i].BlamedRanks, a[i].Links = "rank 7 was lost", []int{7}, nil
			}

			return a[:7]
		}, []fault{{KindRank, "", []int{7}}}, 4,
	},
	"no results": {
		func([]RankResult) []RankResult { return nil },
		[]fault{
			{KindRank, "", []int{0}},
			{KindRank, "", []int{1}},
			{KindRank, "", []int{2}},
			{KindRank, "", []int{3}},
			{KindRank, "", []int{4}},
			{KindRank, "", []int{5}},
			{KindRank, "", []int{6}},
			{KindRank, "", []int{7}},
		},
		4,
	},
	"deadline of all checks": {
		func(a []RankResult) []RankResult {
			for i := range a {
				a[i].Error, a[i].IsDeadlinePassed, a[i].Links = "context deadline exceeded", true, nil
			}

			return a
		}, []fault{{KindJob, "", nil}}, 1,
	},
	"deadline without a culprit": {
		func(a []RankResult) []RankResult {
			a[2].Error, a[2].BlamedRanks, a[2].Links = "deadline", []int{3}, nil
			a[3].Error, a[3].BlamedRanks, a[3].Links = "deadline", []int{2}, nil
			return a
		}, []fault{{KindRank, "node0", []int{2}}, {KindRank, "node0", []int{3}}}, 4,
	},
}

func TestFaultsAreAttributed(t *testing.T) {
	for name, c := range faulty {
		t.Run(name, func(t *testing.T) {
			r := judgeJob(c.change(job(2, 4)), 8)
			var got []fault
			for _, f := range r.Faults {
				got = append(got, fault{f.Kind, f.Node, f.Ranks})
				if f.Text == "" || f.Advice == "" {
					t.Errorf("fault %+v has no text or no advice", f)
				}
			}

			if !reflect.DeepEqual(got, c.want) || r.ExitCode() != c.code || r.IsReady {
				t.Errorf("faults = %v, code %d; want %v, %d", got, r.ExitCode(), c.want, c.code)
			}
		})
	}
}

func TestMinLinkAppliesToOnlyLink(t *testing.T) {
	r := Judge(job(1, 2), Options{Ranks: 2, Tolerance: 0.5, MinLinkSpeed: 400e9, FirstExit: -1})
	if r.ExitCode() != 5 || !slices.Equal(r.Faults[0].Ranks, []int{0, 1}) {
		t.Errorf("report = %+v; want a fault of the link between ranks 0 and 1", r)
	}
}

func TestCallsAreComparedWithTable(t *testing.T) {
	table := &tuning.Table{Device: "H100", Rules: []tuning.Rule{{
		Calls: tuning.Calls{
			Operation: "AllReduce", Shape: tuning.Shape{Ranks: 2, Machines: 1},
		},
		Steps: []tuning.Step{{Measured: []tuning.Point{
			{Bytes: 1 << 24, PlainUS: 10}, {Bytes: 1 << 24, InPlace: true, PlainUS: 60},
		}}},
	}}}
	for us, code := range map[float64]int{100: 0, 119: 0, 121: 1, 29360: 1} {
		results := job(1, 2)
		results[1].Calls[0].Microseconds = us
		r := Judge(results, Options{Ranks: 2, Tolerance: 0.5, FirstExit: -1, Table: table})
		if r.Calls[0].TableMicroseconds != 60 || r.ExitCode() != code {
			t.Errorf("%v us: report = %+v; want code %d and 60 us in the table", us, r, code)
		}

		var text strings.Builder
		if err := r.WriteText(&text); err != nil || strings.Contains(text.String(), "e+") {
			t.Errorf("%v us: report %q, %v; want no exponent", us, text.String(), err)
		}
	}
}

// TestShortCallsAreNotComparedWithTable uses times of a healthy H200. The measured time includes
// the launch, and the table's does not.
func TestShortCallsAreNotComparedWithTable(t *testing.T) {
	table := &tuning.Table{Device: "H200", Rules: []tuning.Rule{{
		Calls: tuning.Calls{
			Operation: "AllReduce", Shape: tuning.Shape{Ranks: 2, Machines: 1},
		},
		Steps: []tuning.Step{{Measured: []tuning.Point{
			{Bytes: 1 << 24, InPlace: true, PlainUS: 4.5},
		}}},
	}}}
	results := job(1, 2)
	results[1].Calls[0].Microseconds = 15.2
	r := Judge(results, Options{Ranks: 2, Tolerance: 0.5, FirstExit: -1, Table: table})
	if r.ExitCode() != 0 {
		t.Errorf("report = %+v; want exit code 0", r)
	}
}

// TestScheduleHasEachPairOnce checks that each pair occurs once, and that a round contains each
// rank at most once.
func TestScheduleHasEachPairOnce(t *testing.T) {
	for ranks := 1; ranks <= 9; ranks++ {
		pairs, seen := pairsByRound(ranks), map[pair]bool{}
		for i, p := range pairs {
			if p.low >= p.high || p.high >= ranks || seen[p] {
				t.Errorf("%d ranks: pair %v is invalid or occurs twice", ranks, p)
			}

			seen[p] = true
			if i%(ranks/2) == 0 {
				continue
			}

			q := pairs[i-1]
			if p.low == q.low || p.low == q.high || p.high == q.low || p.high == q.high {
				t.Errorf("%d ranks: %v and %v share a rank in one round", ranks, q, p)
			}
		}

		if len(seen) != ranks*(ranks-1)/2 {
			t.Errorf("%d ranks: %d pairs; want %d", ranks, len(seen), ranks*(ranks-1)/2)
		}
	}
}

// TestFastLinkIsMeasuredAgain checks that a slow link is not compared with a single measurement of
// a fast link, which other programs may have disturbed.
func TestFastLinkIsMeasuredAgain(t *testing.T) {
	links := [][]Link{{
		{From: 0, To: 1, BytesPerSecond: 300e9}, {From: 0, To: 2, BytesPerSecond: 100e9},
	}, {
		{From: 1, To: 2, BytesPerSecond: 90e9},
	}}
	got := pairsToRepeat(links, []string{"a", "a", "a"}, 0.5)
	if want := []pair{{0, 2}, {0, 1}, {1, 2}}; !slices.Equal(got, want) {
		t.Errorf("pairsToRepeat = %v, want %v", got, want)
	}

	if got := pairsToRepeat(links, []string{"a", "a", "a"}, 0.2); len(got) > 0 {
		t.Errorf("pairsToRepeat = %v without a slow link, want none", got)
	}
}

func TestMetrics(t *testing.T) {
	results := job(1, 3)
	for i := range results {
		results[i].Node = "a\"b\n\xff"
	}

	slowDown(results, func(l Link) bool { return l.To == 2 })
	path := filepath.Join(t.TempDir(), "symmem.prom")
	for range 2 { // the second file replaces the first
		if err := judgeJob(results, 3).WriteMetrics(path); err != nil {
			t.Fatal(err)
		}
	}

	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{
		"\nsymmem_preflight_ok 0\n", "\nsymmem_preflight_ranks 3\n",
		`symmem_preflight_faults{gpu="GPU 2",kind="rank",node="a\"b\n?",ranks="2"} 1`,
		`symmem_preflight_call_seconds{bytes="16777216",operation="AllReduce",path="plain"} 0.0001`,
		`{from="0",from_node="a\"b\n?",to="1",to_node="a\"b\n?"} 3e+11`,
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the metrics do not contain %s:\n%s", want, b)
		}
	}

	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode = %v, %v; want 0644, so that node_exporter can read it", info.Mode(), err)
	}
}
