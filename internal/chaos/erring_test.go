package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"symmem"
)

// erringTask is what a rank is told.
type erringTask struct {
	Seed    uint64
	Program int
	Ops     int
}

// program draws what the ranks do, and what one of them does differently.
func (t *erringTask) program() (*program, mistake, symmem.Options) {
	d := newDraws(t.Seed, t.Program)
	p := drawProgram(d, t.Ops)
	m := drawMistake(d, p)
	o := symmem.Options{
		Backend: "host", Check: symmem.CheckEvery, Timeout: erringTimeout[m.kind == none],
		Path: []symmem.PathChoice{
			symmem.PathAuto, symmem.PathWindow, symmem.PathPlain,
		}[d.IntN(3)],
		Scatter: uint64(d.IntN(2)) * (1 + d.Uint64N(1<<40)),
	}
	return p, m, o
}

// erringTimeout is Options.Timeout without a mistake, where nobody may run into it, and with one.
var erringTimeout = map[bool]time.Duration{true: 30 * time.Second, false: 4 * time.Second}

const (
	// erringLimit is how long a program may take.
	erringLimit = 60 * time.Second
	// groupsTime is how long groups have, once streams have been waited for, to learn of a failure.
	groupsTime = 3 * time.Second
)

// erringReport is what a rank has found.
type erringReport struct {
	Rank int
	// Stopped is the op whose launch returned an error, with which the rank's program ended, or the
	// number of ops.
	Stopped int
	// Wrong are results that were not as the model has them, and about which no error was reported.
	// Silent is what had to report an error and did not.
	Wrong, Silent []string
	// Errors are those that were reported.
	Errors []string
}

// TestErring runs programs on three streams, of which one rank makes a mistake: it is killed,
// aborts a group, makes a call with another count or type, or leaves it out. Calls work on what
// earlier ones computed, also on other streams and in other groups, and nothing is synchronized in
// between. What no error is reported about must be right, and what depends on the failed call must
// report one.
func TestErring(t *testing.T) {
	bar{programs: 24, each: 1, run: erring}.meet(t)
}

func erring(ctx context.Context, number, _ int) error {
	task := erringTask{Seed: *seedFlag, Program: number, Ops: 24}
	p, m, _ := task.program()
	var reports []erringReport
	var other []string
	j := job{role: "erring", ranks: p.ranks, task: task, limit: erringLimit, hear: func(line string) {
		var r erringReport
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			other = append(other, line)
			return
		}
		reports = append(reports, r)
	}}
	_, err := j.run(ctx)
	dies := m.kind == killed || m.kind == killedSoon
	want := p.ranks
	if dies {
		want--
	}
	var bad []error
	if err != nil {
		bad = append(bad, err)
	} else if len(reports) != want || len(other) > 0 {
		bad = append(bad, fmt.Errorf("%d of %d ranks have reported; %q", len(reports), want, other))
	}
	for _, r := range reports {
		bad = append(bad, r.verdict(p, m)...)
	}
	if len(bad) == 0 {
		return nil
	}
	var said strings.Builder
	for _, r := range reports {
		fmt.Fprintf(&said, "rank %d has queued %d of %d ops, and was told:\n", r.Rank, r.Stopped,
			len(p.ops))
		for _, e := range r.Errors {
			fmt.Fprintf(&said, "\t%.300s\n", e)
		}
	}
	return fmt.Errorf("program %d, %v: %w\n%s%s", number, m, errors.Join(bad...), &said, p)
}

// verdict is what is wrong about what a rank says.
func (r *erringReport) verdict(p *program, m mistake) (bad []error) {
	for _, what := range r.Wrong {
		bad = append(bad, fmt.Errorf("rank %d: wrong without an error: %s", r.Rank, what))
	}
	for _, what := range r.Silent {
		bad = append(bad, fmt.Errorf("rank %d: no error: %s", r.Rank, what))
	}
	if m.kind == none && (len(r.Errors) > 0 || r.Stopped != len(p.ops)) {
		bad = append(bad, fmt.Errorf("rank %d: an error without a mistake: %q", r.Rank, r.Errors))
	}
	return bad
}

// String lists the program.
func (p *program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d ranks, groups %v, %d buffers of %d, Go's from %d on\n", p.ranks, p.groups,
		p.buffers, p.elements, p.foreign)
	for g, body := range p.graphs {
		for _, o := range body {
			o.stream = p.captured[g]
			fmt.Fprintf(&b, "graph %d, %v\n", g, &o)
		}
	}
	for i := range p.ops {
		fmt.Fprintf(&b, "%4d  %v\n", i, &p.ops[i])
	}
	return b.String()
}

// erringRank is the main function of a rank.
func erringRank(text []byte) error {
	var task erringTask
	if err := json.Unmarshal(text, &task); err != nil {
		return err
	}
	p, m, options := task.program()
	r, err := prepare(context.Background(), &task, p, m, options)
	if err != nil {
		return err
	}
	report := erringReport{Rank: r.rt.Rank()}
	report.Stopped = r.issue(&report)
	r.judge(&report)
	if err := r.rt.Close(); err != nil {
		if m.kind == none {
			report.Errors = append(report.Errors, fmt.Sprintf("closing: %v", err))
		}
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

// judge waits for everything, and compares with the model what no error was reported about.
func (r *performer) judge(report *erringReport) {
	v := newModel(r.seed, r.p, r.m)
	v.run(report.Stopped)
	me := r.rt.Rank()
	onStream, onEvent := r.synchronize(report.Stopped, report)
	for s, err := range onStream {
		if at := v.failed[me][s]; at < never && err == nil {
			report.Silent = append(report.Silent, fmt.Sprintf("stream %d, whose op %d cannot have "+
				"been done", s, at))
		}
	}
	for e, err := range onEvent {
		if v.marred[me][e] && err == nil {
			report.Silent = append(report.Silent, fmt.Sprintf("event %d, behind what failed", e))
		}
	}
	ctx, cancel := context.WithTimeout(r.ctx, groupsTime)
	defer cancel()
	for g, at := range v.broken[me] {
		if at < never && !r.groupEnds(ctx, g) {
			report.Silent = append(report.Silent, fmt.Sprintf("group %d, whose call at op %d cannot "+
				"have been done", g, at))
		}
	}
	for b, want := range v.data[me] {
		if v.lost[me][b] || !v.covered(me, b, onStream, onEvent) || r.torn(b, report.Stopped) {
			continue
		}
		if at := differs(r.data[b], want); at >= 0 {
			report.Wrong = append(report.Wrong, fmt.Sprintf("buffer %d, element %d is %d, want %d; "+
				"written by op %d", b, at, r.data[b][at], want[at], v.wrote[me][b]))
		}
	}
}

// differs is the first place where two buffers differ, or -1.
func differs[T int32 | float32](got, want []T) int {
	for i := range want {
		if got[i] != want[i] {
			return i
		}
	}
	return -1
}

// torn reports whether the call with which a rank stopped was to write a buffer.
func (r *performer) torn(buffer, stopped int) bool {
	if stopped == len(r.p.ops) {
		return false
	}
	return slices.ContainsFunc(r.p.body(&r.p.ops[stopped]), func(o op) bool {
		return o.kind <= cp && o.recv == buffer
	})
}

// covered reports whether a buffer was reported to be written: by its stream, or by an event that
// was recorded there behind the op that wrote it.
func (v *model) covered(rank, buffer int, onStream, onEvent map[int]error) bool {
	at := v.wrote[rank][buffer]
	if at < 0 {
		return true
	}
	stream := v.p.ops[at].stream
	if err, asked := onStream[stream]; asked && err == nil {
		return true
	}
	for e, err := range onEvent {
		i := v.recorded[e]
		if err == nil && i > at && v.p.ops[i].stream == stream {
			return true
		}
	}
	return false
}
