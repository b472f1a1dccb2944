package chaos

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"symmem"
)

type verdict struct {
	*player
	*model
	// endIndex is the index of the op whose error ended the program, or else the number of ops.
	endIndex int
	// reported lists the errors that symmem returned. failures lists wrong results without an
	// error, and expected errors that were not returned.
	reported, failures []string
	// syncErrs holds the errors of the program's own calls of Synchronize, because a stream returns
	// an error only once.
	syncErrs map[int]error
}

// groupsTime bounds the time from the end of the work on a group's streams until the group has
// failed.
const groupsTime = 3 * time.Second

func (v *verdict) addFailure(format string, args ...any) {
	v.failures = append(v.failures, fmt.Sprintf(format, args...))
}

func (v *verdict) check() {
	onStream, onEvent := v.synchronize()
	v.mu.Lock()
	v.model.sources, v.model.rank = v.player.sources, v.rt.Rank()
	v.mu.Unlock()
	v.model.run(v.endIndex)
	self := v.rt.Rank()
	for s, err := range onStream {
		if index := v.streamFailsAt[self][s]; index < never && err == nil {
			v.addFailure("stream %d returned no error, but its op %d should have failed", s, index)
		}
	}
	for e, err := range onEvent {
		if v.eventFails[self][e] && err == nil {
			v.addFailure("event %d returned no error, but was recorded after a failure", e)
		}
	}
	ctx, cancel := context.WithTimeout(v.ctx, groupsTime)
	defer cancel()
	for g, index := range v.groupFailsAt[self] {
		if index < never && !hasGroupFailed(ctx, v.groups[g]) {
			v.addFailure("group %d has no error, but its call in op %d should have failed", g, index)
		}
	}
	for b := range v.data[self] {
		freed := v.memory[b] == (symmem.Memory{})
		if !freed && !v.undefined[self][b] && !v.mayHaveWritten(b) &&
			v.isComplete(self, b, onStream, onEvent) {
			v.compare(b)
		}
	}
}

// finish is for programs without a mistake. It checks that symmem returned no errors and releases
// all resources.
func (v *verdict) finish() {
	if len(v.reported) > 0 {
		v.addFailure("valid program returned errors: %q", v.reported)
	}
	if len(v.failures) > 0 {
		return
	}
	if err := v.release(); err != nil {
		v.addFailure("releasing: %v", err)
	}
}

func (v *verdict) compare(b int) {
	self, n := v.rt.Rank(), v.model.p.buffers[b].bytes
	got := make([]byte, n)
	s := v.auxiliary
	err := s.Copy(symmem.Host(got), v.memory[b])
	if err == nil {
		err = s.Synchronize(v.ctx)
	}
	if err != nil {
		v.addFailure("reading buffer %d: %v", b, err)
		return
	}
	if want := v.data[self][b].part(0, n); !bytes.Equal(got, want) {
		index := firstDifference(got, want)
		v.addFailure("wrong result without an error: buffer %d has %x at byte %d, want %x; last write: "+
			"op %d", b, got[index:min(index+8, n)], index, want[index:min(index+8, n)],
			v.lastWrite[self][b])
	}
}

func firstDifference[T byte | float32](got, want []T) int {
	for i := range want {
		if got[i] != want[i] {
			return i
		}
	}
	return -1
}

// synchronize returns the errors of all streams and recorded events. Its order is random if the
// world runs only one program. Otherwise it is fixed, because the pool's history records it and
// must be the same on all ranks.
func (v *verdict) synchronize() (onStream, onEvent map[int]error) {
	onStream, onEvent = map[int]error{}, map[int]error{}
	order := v.noise.Perm(len(v.streams) + len(v.events))
	if v.task.ProgramsPerWorld > 1 {
		slices.Sort(order)
	}
	for _, i := range order {
		e := i - len(v.streams)
		if e < 0 {
			onStream[i] = cmp.Or(v.syncErrs[i], v.streams[i].Synchronize(v.ctx))
			v.noteError("stream", i, onStream[i])
		} else if v.wasRecorded(e) {
			onEvent[e] = v.events[e].Synchronize(v.ctx)
			v.noteError("event", e, onEvent[e])
		}
	}
	return onStream, onEvent
}

func (v *verdict) noteError(source string, i int, err error) {
	if err != nil {
		v.reported = append(v.reported, fmt.Sprintf("%s %d: %v", source, i, err))
	}
}

func (v *verdict) wasRecorded(event int) bool {
	return slices.ContainsFunc(v.player.p.ops[:v.endIndex], func(o op) bool {
		return o.kind == recordOp && o.event == event
	})
}

func hasGroupFailed(ctx context.Context, g *symmem.Group) bool {
	select {
	case <-g.Ended():
		return g.Err() != nil
	case <-ctx.Done():
		return false
	}
}

// mayHaveWritten reports whether the op that ended the program may have written to a buffer.
func (v *verdict) mayHaveWritten(buffer int) bool {
	p := v.player.p
	return v.endIndex < len(p.ops) && slices.ContainsFunc(p.body(&p.ops[v.endIndex]), func(o op) bool {
		return o.kind <= allocOp && o.recv == buffer
	})
}

// isComplete reports whether the last write to a buffer is known to be complete: its stream, or an
// event recorded after it, was synchronized without an error.
func (m *model) isComplete(rank, buffer int, onStream, onEvent map[int]error) bool {
	index := m.lastWrite[rank][buffer]
	if index < 0 {
		return true
	}
	stream := m.p.ops[index].recvStream
	if err, synchronized := onStream[stream]; synchronized && err == nil {
		return true
	}
	for e, err := range onEvent {
		i := m.recordOp[e]
		if err == nil && i > index && m.p.ops[i].stream == stream {
			return true
		}
	}
	return false
}
