package random

import (
	"context"
	"errors"
	"fmt"

	"symmem"
	"symmem/cmd/symmem/internal/workload"
)

// testCall is a call with its streams and its right output.
type testCall struct {
	workload.Transfer
	inputStream *symmem.Stream // on which the input is written
	stream      *symmem.Stream // on which the call is made
	input       symmem.Buffer
	want        []byte // nil if this rank receives no output
}

// launch makes the call if this rank is in the group.
func (call *testCall) launch(ctx context.Context) error {
	lacksPeer := call.Operation == symmem.OpSend && call.Ranks == 1
	if call.Group == nil || lacksPeer {
		return nil
	}

	call.want = call.Output(call.Group.Rank())
	return call.Launch(ctx, call.stream, call.stream)
}

func (call *testCall) describe() string {
	name := call.Operation.String()
	if call.Operation == symmem.OpSend {
		name = "Send and Recv"
	}

	text := fmt.Sprintf("%s of %d %v", name, call.Count, call.DataType)
	if call.Operation.Reduces() {
		text += " " + call.ReduceOp.String()
	}

	if call.Group != nil {
		text += " in group " + call.Group.ID()
	}

	if call.Send == call.Recv {
		text += " in place"
	}

	return text
}

// recording holds calls of one group, which are captured in a graph. For each call, the graph
// overwrites the output with junk, makes the call, and copies the output to another buffer (the
// result copy). The copy is wrong if a pool reused the memory of a freed input or output while the
// graph existed.
type recording struct {
	graph graph // set by graphs.captureOn
	// capturedByLibrary is set if another GPU library captured the graph. Pools do not know such a
	// graph, so its buffers must stay allocated. Only streams of that library can launch it.
	capturedByLibrary bool
	group             int // index in groups.all
	calls             []*testCall
	resultCopies      []symmem.Buffer // by index in calls
	liveBuffers       []symmem.Buffer // inputs and outputs that have not been freed
}

// graph is a *symmem.Graph or a *program.LibraryGraph.
type graph interface {
	Launch(s *symmem.Stream) error
	Close() error
}

// addCall adds a call with three new buffers of the given size, and fills two of them on s.
func (rec *recording) addCall(
	call *testCall, s *symmem.Stream, p *symmem.Pool, bytes int64,
) error {
	var buffers [3]symmem.Buffer
	for i := range buffers {
		b, err := p.AllocOn(s, bytes)
		if err != nil {
			return err
		}

		buffers[i] = b
	}

	input, output, resultCopy := buffers[0], buffers[1], buffers[2]
	if err := call.Place(input.Memory(), output.Memory()); err != nil {
		return err
	}

	call.inputStream = s
	call.stream = s
	rec.calls = append(rec.calls, call)
	rec.resultCopies = append(rec.resultCopies, resultCopy)
	rec.liveBuffers = append(rec.liveBuffers, input, output)
	return call.Fill(s)
}

// capture captures the calls on s, which must be a stream of symmem.
func (rec *recording) capture(ctx context.Context, s *symmem.Stream) (graph, error) {
	if err := s.BeginCapture(); err != nil {
		return nil, err
	}

	queueErr := rec.queueCalls(ctx, s)
	g, endErr := s.EndCapture() // even after an error, so that the stream can be used again
	if err := errors.Join(queueErr, endErr); err != nil {
		return nil, err
	}

	return g, nil
}

// queueCalls queues the work of the graph on s during a capture.
func (rec *recording) queueCalls(ctx context.Context, s *symmem.Stream) error {
	for i, call := range rec.calls {
		if err := queueCall(ctx, call, rec.resultCopies[i], s); err != nil {
			return err
		}
	}

	return nil
}

func queueCall(
	ctx context.Context, call *testCall, resultCopy symmem.Buffer, s *symmem.Stream,
) error {
	dst, err := resultCopy.Memory().Slice(0, call.Recv.Bytes())
	if err != nil {
		return err
	}

	if err := useBuffers(call, dst, s); err != nil {
		return err
	}

	if err := call.launch(ctx); err != nil {
		return fmt.Errorf("%v: %w", call.describe(), err)
	}

	return s.Copy(dst, call.Recv)
}

// useBuffers overwrites the output of a call, and copies the first byte of the input, if any, to
// dst. Thus, ranks outside the group use the same buffers.
func useBuffers(call *testCall, dst symmem.Memory, s *symmem.Stream) error {
	size := min(1, call.Send.Bytes(), dst.Bytes()) // 0 or 1
	firstByte, err := call.Send.Slice(0, size)
	if err != nil {
		return err
	}

	dst, err = dst.Slice(0, size)
	if err != nil {
		return err
	}

	fillErr := s.Fill(call.Recv, workload.Junk)
	copyErr := s.Copy(dst, firstByte)
	return errors.Join(fillErr, copyErr)
}

func (rec *recording) overwriteResults(s *symmem.Stream) error {
	const junk = ^byte(workload.Junk) // differs from the junk that the graph writes
	var errs []error
	for _, b := range rec.resultCopies {
		errs = append(errs, s.Fill(b.Memory(), junk))
	}

	return errors.Join(errs...)
}

// readResults queues copies of the results to the Got fields of the calls.
func (rec *recording) readResults(s *symmem.Stream) error {
	for i, call := range rec.calls {
		src, err := rec.resultCopies[i].Memory().Slice(0, call.Recv.Bytes())
		if err != nil {
			return err
		}

		call.Got = make([]byte, src.Bytes())
		if err := s.Copy(symmem.Host(call.Got), src); err != nil {
			return err
		}
	}

	return nil
}

func (rec *recording) close() error {
	errs := []error{rec.graph.Close()}
	for _, b := range rec.resultCopies {
		errs = append(errs, b.Free())
	}

	for _, b := range rec.liveBuffers {
		errs = append(errs, b.Free())
	}

	return errors.Join(errs...)
}
