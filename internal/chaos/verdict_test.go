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

// A program is a list of ops that all ranks perform on their buffers and streams. A player has
// performed them on this rank, and a model predicts the outcome. Suppose that another rank skips
// the call of op 5, on stream 1. The model then predicts that stream 1 fails at op 5, that the
// group fails, and that some buffers are undefined. It also predicts the contents of all other
// buffers. The verdict adds a failure for each difference, for example if stream 1 has returned no
// error, or if a buffer has other contents.

// verdict compares the outcome of a program on one rank with the prediction.
type verdict struct {
	*player
	*model
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

// check waits until all work has ended, and adds a failure for each difference from the prediction.
func (v *verdict) check() {
	onStream, onEvent := v.synchronize()
	self := v.rt.Rank()
	v.mu.Lock()
	v.model.sources = v.player.sources
	v.model.rank = self
	v.mu.Unlock()
	v.model.run(v.endIndex)
	v.checkErrors(onStream, onEvent)
	for b := range v.data[self] {
		isFreed := v.memory[b] == (symmem.Memory{})
		isPredicted := !v.undefined[self][b] && !v.mayHaveWritten(b)
		if !isFreed && isPredicted && v.isComplete(self, b, onStream, onEvent) {
			v.compareBuffer(b)
		}
	}
}

// checkErrors adds a failure for each predicted error that a stream, an event or a group has not
// returned. The model predicts the index of the op at which a stream or a group fails. The index is
// never if it does not fail.
func (v *verdict) checkErrors(onStream, onEvent map[int]error) {
	self := v.rt.Rank()
	for s, err := range onStream {
		index := v.streamFailsAt[self][s]
		if index < never && err == nil {
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
}

// finish ends a program without a mistake. It adds a failure if symmem has returned an error, and
// releases all resources if there is no failure.
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

// compareBuffer adds a failure if the contents of buffer b differ from the prediction.
func (v *verdict) compareBuffer(b int) {
	self := v.rt.Rank()
	n := v.model.p.buffers[b].bytes
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

	want := v.data[self][b].part(0, n)
	if bytes.Equal(got, want) {
		return
	}

	const maxPrintedBytes = 8
	index := firstDifference(got, want)
	end := min(index+maxPrintedBytes, n)
	v.addFailure("wrong result without an error: buffer %d has %x at byte %d, want %x; last write: "+
		"op %d", b, got[index:end], index, want[index:end], v.lastWrite[self][b])
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

// synchronize waits for all streams and recorded events, and returns their errors. It waits for
// them in random order if the world runs only one program. Otherwise, the order is fixed, because
// the pool's history records it, and the history must be the same on all ranks.
func (v *verdict) synchronize() (onStream, onEvent map[int]error) {
	onStream = map[int]error{}
	onEvent = map[int]error{}
	order := v.noise.Perm(len(v.streams) + len(v.events))
	if v.task.ProgramsPerWorld > 1 {
		slices.Sort(order)
	}

	for _, i := range order { // the smaller numbers are streams, and the others events
		isStream := i < len(v.streams)
		e := i - len(v.streams)
		if isStream {
			err := v.streams[i].Synchronize(v.ctx)
			onStream[i] = cmp.Or(v.syncErrs[i], err)
			v.recordError("stream", i, onStream[i])
		} else if v.wasRecorded(e) {
			onEvent[e] = v.events[e].Synchronize(v.ctx)
			v.recordError("event", e, onEvent[e])
		}
	}

	return onStream, onEvent
}

// recordError adds err, unless it is nil, to the errors that symmem has returned.
func (v *verdict) recordError(source string, i int, err error) {
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
	err, isSynchronized := onStream[stream]
	if isSynchronized && err == nil {
		return true
	}

	for e, err := range onEvent {
		recordIndex := m.recordOp[e]
		isAfterWrite := recordIndex > index && m.p.ops[recordIndex].stream == stream
		if isAfterWrite && err == nil {
			return true
		}
	}

	return false
}
