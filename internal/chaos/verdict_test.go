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

// verdict compares the results of a program on one rank with those that the model predicts.
type verdict struct {
	*player // has performed the program
	*model  // predicts the outcome
	// endIndex is the index of the op whose error ended the program, or else the number of ops.
	endIndex int
	// reported lists the errors that symmem returned. failures lists wrong results without an
	// error, and expected errors that were not returned.
	reported, failures []string
	// syncErrs holds the errors of the program's own calls of Synchronize, by stream, because a
	// stream returns an error only once.
	syncErrs map[int]error
}

// groupsTime bounds the time from the end of the work on a group's streams until the group has
// failed.
const groupsTime = 3 * time.Second

// addFailure adds a formatted text to the failures.
func (v *verdict) addFailure(format string, args ...any) {
	v.failures = append(v.failures, fmt.Sprintf(format, args...))
}

// check waits until all work has ended, and adds a failure for each result or missing error that
// differs from the model. The model runs the program up to endIndex.
func (v *verdict) check() {
	onStream, onEvent := v.synchronize()
	self := v.rt.Rank()
	v.mu.Lock()
	v.model.sources, v.model.rank = v.player.sources, self
	v.mu.Unlock()
	v.model.run(v.endIndex)
	// The model predicts the first op that must fail on each stream and in each group. If none must,
	// its index is never.
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
		isFreed := v.memory[b] == (symmem.Memory{})
		isPredicted := !v.undefined[self][b] && !v.mayHaveWritten(b)
		if !isFreed && isPredicted && v.isComplete(self, b, onStream, onEvent) {
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

// compare adds a failure if the contents of buffer b are not those of the model.
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
		end := min(index+8, n) // of the bytes to print
		v.addFailure("wrong result without an error: buffer %d has %x at byte %d, want %x; last write: "+
			"op %d", b, got[index:end], index, want[index:end], v.lastWrite[self][b])
	}
}

// firstDifference returns the index of the first element in which got differs from want, or -1.
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
	order := v.noise.Perm(len(v.streams) + len(v.events)) // streams have the first numbers
	if v.task.ProgramsPerWorld > 1 {
		slices.Sort(order)
	}

	for _, i := range order {
		isStream := i < len(v.streams)
		e := i - len(v.streams) // index of an event
		if isStream {
			err := v.streams[i].Synchronize(v.ctx)
			onStream[i] = cmp.Or(v.syncErrs[i], err)
			v.noteError("stream", i, onStream[i])
		} else if v.wasRecorded(e) {
			onEvent[e] = v.events[e].Synchronize(v.ctx)
			v.noteError("event", e, onEvent[e])
		}
	}

	return onStream, onEvent
}

// noteError adds err, unless it is nil, to the errors that symmem returned.
func (v *verdict) noteError(source string, i int, err error) {
	if err != nil {
		v.reported = append(v.reported, fmt.Sprintf("%s %d: %v", source, i, err))
	}
}

// wasRecorded reports whether the program has recorded an event.
func (v *verdict) wasRecorded(event int) bool {
	return slices.ContainsFunc(v.player.p.ops[:v.endIndex], func(o op) bool {
		return o.kind == recordOp && o.event == event
	})
}

// hasGroupFailed waits until the group has failed or ctx ends.
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
	if v.endIndex == len(p.ops) {
		return false // no op has ended the program
	}

	return slices.ContainsFunc(p.body(&p.ops[v.endIndex]), func(o op) bool {
		writes := o.kind <= allocOp // later kinds write no buffer
		return writes && o.recv == buffer
	})
}

// isComplete reports whether the last write to a buffer is known to be complete: its stream, or an
// event recorded after it, was synchronized without an error.
func (m *model) isComplete(rank, buffer int, onStream, onEvent map[int]error) bool {
	index := m.lastWrite[rank][buffer]
	if index < 0 {
		return true // no op has written to the buffer
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
