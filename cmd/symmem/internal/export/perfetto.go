package export

import (
	"archive/zip"
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"symmem/event"
	"symmem/trace"
)

// WritePerfetto writes a ZIP archive for Perfetto 58 or later. The archive contains the events of
// each rank in Chrome's trace event format, and a manifest that puts the ranks on one timeline.
func WritePerfetto(w io.Writer, t *Traces, version string) error {
	archive := zip.NewWriter(w)
	if err := writeManifest(archive, t, version); err != nil {
		return fmt.Errorf("writing the manifest: %w", err)
	}

	for _, r := range t.ranks {
		l, err := readTrace(r.path)
		if err != nil {
			return err
		}

		f, err := archive.Create(perfettoName(r.rank))
		if err == nil {
			err = writeChrome(f, l)
		}

		if err != nil {
			return fmt.Errorf("writing the events of rank %d: %w", r.rank, err)
		}
	}

	if err := archive.Close(); err != nil {
		return fmt.Errorf("completing the archive: %w", err)
	}

	return nil
}

func perfettoName(rank int) string { return fmt.Sprintf("rank%d.json", rank) }

// The following types describe version 1 of an archive's manifest:
// https://perfetto.dev/docs/reference/perfetto-manifest
type (
	manifest struct {
		Version    int            `json:"version"`
		Files      []manifestFile `json:"files"`
		Attributes map[string]any `json:"attributes"`
	}
	manifestFile struct {
		Path    string           `json:"path"`
		Machine *manifestMachine `json:"machine,omitempty"`
		Clocks  *manifestClocks  `json:"clocks,omitempty"`
	}
	manifestMachine struct {
		Name string `json:"name"`
	}
	manifestClocks struct {
		SyncTo   manifestSource `json:"sync_to"`
		OffsetNS int64          `json:"offset_ns"`
	}
	manifestSource struct {
		File string `json:"file"`
	}
)

func writeManifest(archive *zip.Writer, t *Traces, version string) error {
	f, err := archive.Create("perfetto_manifest.json")
	if err != nil {
		return err
	}

	return json.NewEncoder(f).Encode(map[string]manifest{"perfetto_manifest": newManifest(t, version)})
}

// newManifest returns the manifest. Times in a file are relative to the start of the trace. The
// timeline begins with the trace that started first, so that no event has a negative time.
func newManifest(t *Traces, version string) manifest {
	first := 0
	for i := range t.ranks {
		if t.correctedStart(i).Before(t.correctedStart(first)) {
			first = i
		}
	}

	m := manifest{Version: 1, Attributes: map[string]any{
		"symmem.version": version,
		"symmem.start":   t.correctedStart(first).UTC().Format(time.RFC3339Nano),
	}}
	for i, r := range t.ranks {
		f := manifestFile{Path: perfettoName(r.rank)}
		if r.host != "" {
			f.Machine = &manifestMachine{r.host}
		}

		if i != first {
			f.Clocks = &manifestClocks{
				SyncTo:   manifestSource{perfettoName(t.ranks[first].rank)},
				OffsetNS: t.correctedStart(i).Sub(t.correctedStart(first)).Nanoseconds(),
			}
		}

		m.Files = append(m.Files, f)
		m.Attributes[fmt.Sprintf("symmem.rank%d.clock", r.rank)] = t.Clocks[i].String()
	}

	return m
}

type chromeEvent struct {
	Phase    string         `json:"ph"`
	Name     string         `json:"name"`
	Process  int            `json:"pid"`
	Thread   int            `json:"tid"`
	Time     nanoseconds    `json:"ts"`
	Duration nanoseconds    `json:"dur,omitempty"`
	Scope    string         `json:"s,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
}

// nanoseconds is encoded in JSON as a number of microseconds.
type nanoseconds int64

// MarshalJSON implements json.Marshaler.
func (n nanoseconds) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%d.%03d", n/1000, n%1000), nil
}

// chromeWriter writes the events of a rank. The viewer shows ranks as processes and groups as
// threads.
type chromeWriter struct {
	w          *bufio.Writer
	log        *trace.Log
	process    int                     // number of the rank's process in the viewer
	threads    map[string]int          // number of the thread in the viewer, by group
	steps      map[string]*chromeEvent // current step, by group
	memory     *poolStates
	changed    map[*poolState]bool // pools whose counters have changed since the last flush
	time       timeline
	now        nanoseconds
	needsComma bool
	err        error
}

// memoryThread is the thread on which the viewer shows registrations and realignments.
const memoryThread = 1

func writeChrome(w io.Writer, l *trace.Log) error {
	c := &chromeWriter{
		w: bufio.NewWriterSize(w, 1<<16), log: l, process: l.Rank + 1, threads: map[string]int{},
		steps: map[string]*chromeEvent{}, memory: newPoolStates(), changed: map[*poolState]bool{},
		time: timeline{l.Start},
	}
	_, _ = c.w.WriteString(`{"displayTimeUnit":"ns","traceEvents":[`)
	c.writeName("process_name", 0, processName(l))
	c.writeName("thread_name", memoryThread, "memory, at the time of the preceding event")
	for i := range l.Records {
		c.writeRecord(&l.Records[i])
	}

	c.flush()
	for _, step := range c.steps {
		c.endStep(step)
	}

	_, _ = c.w.WriteString("]}\n")
	if err := c.w.Flush(); c.err == nil {
		return err
	}

	return c.err
}

func processName(l *trace.Log) string {
	if l.Host == "" {
		return fmt.Sprintf("rank %d (process %d)", l.Rank, l.Process)
	}

	return fmt.Sprintf("rank %d (process %d on %s)", l.Rank, l.Process, l.Host)
}

func (c *chromeWriter) write(e *chromeEvent) {
	b, err := json.Marshal(e)
	if err != nil {
		c.err = err
	}

	if c.needsComma {
		_ = c.w.WriteByte(',')
	}

	c.needsComma = true
	_, _ = c.w.Write(append(b, '\n'))
}

func (c *chromeWriter) writeName(kind string, thread int, name string) {
	c.write(&chromeEvent{
		Phase: "M", Name: kind, Process: c.process, Thread: thread, Args: map[string]any{"name": name},
	})
}

func (c *chromeWriter) writeRecord(r *trace.Record) {
	if !r.Kind.IsGroupEvent() {
		c.applyPoolEvent(r)
		return
	}

	c.flush()
	c.now = max(c.now, nanoseconds(c.time.advance(r).Sub(c.log.Start)))
	thread := c.findOrAddThread(r.Group)
	e := &chromeEvent{
		Phase: "i", Scope: "t", Process: c.process, Thread: thread, Time: c.now, Args: arguments(r),
	}
	switch r.Kind {
	case event.KindCollective:
		e.Name = r.Call
		e.Args["bytes"], e.Args["digest"] = r.Bytes, strconv.FormatUint(r.Digest, 16)
	case event.KindStep:
		if step := c.steps[r.Group]; step != nil {
			c.endStep(step)
		}

		e.Name, e.Phase, e.Scope = "step "+r.Text, "X", ""
		c.steps[r.Group] = e
		return
	case event.KindFault:
		e.Name, e.Scope = "fault: "+r.Text, "p"
	default:
		e.Name = r.String()
	}

	c.write(e)
}

func arguments(r *trace.Record) map[string]any {
	a := map[string]any{"number": r.Number}
	if r.Site != "" {
		a["site"] = r.Site
	}

	return a
}

// endStep writes a step that ends now.
func (c *chromeWriter) endStep(step *chromeEvent) {
	step.Duration = max(c.now-step.Time, 1)
	c.write(step)
}

func (c *chromeWriter) findOrAddThread(group string) int {
	n, ok := c.threads[group]
	if !ok {
		n = memoryThread + 1 + len(c.threads)
		c.threads[group] = n
		c.writeName("thread_name", n, "group "+group+": submitted calls, completed values")
	}

	return n
}

// applyPoolEvent updates the state of a pool. Its counters are written before the next event of a
// group.
func (c *chromeWriter) applyPoolEvent(r *trace.Record) {
	if !r.Time.IsZero() {
		c.now = max(c.now, nanoseconds(c.time.advance(r).Sub(c.log.Start)))
	}

	if p := c.memory.apply(r); p != nil {
		c.changed[p] = true
	}

	switch r.Kind {
	case event.KindRegister, event.KindDeregister, event.KindRestart:
		c.write(&chromeEvent{
			Phase: "i", Scope: "t", Name: r.String(), Process: c.process, Thread: memoryThread,
			Time: c.now, Args: arguments(r),
		})
	default:
	}
}

// flush writes the counters of the pools that have changed, at the time of the preceding event.
func (c *chromeWriter) flush() {
	for p := range c.changed {
		c.write(&chromeEvent{
			Phase: "C", Name: p.title + ", bytes", Process: c.process, Time: c.now,
			Args: map[string]any{"allocated": p.allocatedBytes, "mapped": p.mappedBytes},
		})
	}

	clear(c.changed)
}
