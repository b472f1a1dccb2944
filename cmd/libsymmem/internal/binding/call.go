package binding

import (
	"cmp"
	"context"
	"fmt"

	"symmem"
	"symmem/driver"
)

// calls implements the functions in symmem.h that queue collectives. In this file, handle is the
// handle of a group.
type calls struct{ session *session }

// Arguments holds a collective's arguments as C passes them: enumerators are numbers, and buffers
// are addresses.
type Arguments struct {
	Operation, Type, Op, Path int     // enumerators
	Root                      int     // root of a collective, or other rank of a send or receive
	Tag                       int     // of a send or receive
	Count                     int64   // in elements; unused with Splits
	Factor                    float64 // factor of PremulSum
	Send, Recv                uintptr // 0 if the operation does not use the buffer
	// Splits is for operations whose parts have different sizes. If its offsets are nil, the parts
	// are contiguous.
	Splits *symmem.Splits
	// Arrived, if set, is called with the sender's rank after a Recv has received its message.
	Arrived func(rank int)
	// Event, if set, receives the handle of an event after the call, or 0 if the call is complete.
	Event *uint64
	// More holds the calls that run together with this one.
	More []Arguments
	// Wait makes Do wait until the stream is idle.
	Wait   bool
	Stream uintptr
	Site   uint32 // number of the call site, or 0 if it is unknown
}

// Do queues a call (a collective, a send or a receive), and those in its More, on a stream of
// another library.
func (cs *calls) Do(handle uint64, a *Arguments) error {
	r, g, err := cs.session.group(handle)
	if err != nil {
		return err
	}

	call, err := a.toCall(r, g)
	if err != nil {
		return err
	}

	if len(a.More) > 0 {
		call.More, err = toCalls(a.More, r, g)
		if err != nil {
			return err
		}
	}

	s, err := r.findStream(a.Stream)
	if err != nil {
		return err
	}

	if a.Event != nil && r.rt.Interop().IsCapturing(a.Stream) {
		return fmt.Errorf("a call with an event on stream %#x: %w", a.Stream, symmem.ErrCapturing)
	}

	if err := cs.queueCall(r.interopAt(a.Site), g, call, s); err != nil {
		return err
	}

	isSenderKnown := call.Arrived == nil // see toCall
	if a.Arrived != nil && isSenderKnown {
		a.Arrived(a.Root)
	}

	if a.Event != nil {
		*a.Event, err = cs.session.recordUnlessDone(streamUse{r, s})
	}

	return err
}

// queueCall queues a call. If memory must be registered first, queueCall waits for other ranks,
// and the caller can interrupt the wait.
func (cs *calls) queueCall(
	interop symmem.Interop, g *group, call symmem.Call, s *symmem.Stream,
) error {
	mustRegister := interop.Registers(g.Group, call.Operation, call.Send, call.Recv, s)
	for i := range call.More {
		if mustRegister {
			break
		}

		next := &call.More[i]
		mustRegister = interop.Registers(g.Group, next.Operation, next.Send, next.Recv, s)
	}

	if mustRegister {
		return cs.queueInterruptible(interop, g, call, s)
	}

	return interop.Do(context.Background(), g.Group, call, s)
}

// queueInterruptible queues a call whose wait for other ranks can be interrupted. It is separate
// from queueCall, so that other calls do not allocate memory for the closure.
func (cs *calls) queueInterruptible(
	interop symmem.Interop, g *group, call symmem.Call, s *symmem.Stream,
) error {
	return cs.session.runInterruptible("registering", func(ctx context.Context) error {
		return interop.Do(ctx, g.Group, call, s)
	})
}

func toCalls(list []Arguments, r *rank, g *group) ([]symmem.Call, error) {
	converted := make([]symmem.Call, len(list))
	for i := range list {
		call, err := list[i].toCall(r, g)
		if err != nil {
			return nil, fmt.Errorf("call %d of a list: %w", i+1, err) // the first call has the number 0
		}

		converted[i] = call
	}

	return converted, nil
}

// toCall converts the arguments, except for More, to a call of a rank in a group. It checks their
// values and looks up the buffers.
func (a *Arguments) toCall(r *rank, g *group) (symmem.Call, error) {
	const maxCount = 1 << 44 // of all ranks; sizes in bytes cannot overflow
	call := symmem.Call{
		Root: a.Root, Tag: a.Tag, Count: a.Count, Factor: a.Factor, Wait: a.Wait,
	}
	var errs [4]error
	call.Operation, errs[0] = parseEnum("operation", operations, a.Operation)
	call.Type, errs[1] = parseEnum("element type", types, a.Type)
	call.Op, errs[2] = parseEnum("reduction", reductions, a.Op)
	call.Path, errs[3] = parseEnum("path", paths, a.Path)
	for _, err := range errs {
		if err != nil {
			return call, err
		}
	}

	if a.Count < 0 {
		return call, fmt.Errorf("the count of elements is %d: %w", a.Count, symmem.ErrInvalid)
	}

	if a.Count > maxCount/int64(g.Size()) {
		return call, fmt.Errorf("the count of elements is %d: %w", a.Count, symmem.ErrOutOfRange)
	}

	if a.Root == symmem.AnySource {
		call.Arrived = a.Arrived // otherwise, the sender is Root, and Do calls Arrived
	}

	// driverCall determines the sizes of the buffers.
	driverCall := driver.Call{
		Operation: call.Operation, DataType: call.Type, Count: call.Count, Root: call.Root,
	}
	if a.Splits != nil {
		driverCall.Splits = a.Splits.WithOffsets()
		if err := driverCall.Splits.Validate(call.Operation, g.Size()); err != nil {
			return call, err
		}

		call.Splits = driverCall.Splits
		driverCall.Count = a.Splits.CountOf(call.Operation, g.Rank())
	} else if equal, ok := equalPartOperations[call.Operation]; ok {
		// Explain passes no splits. It explains such an operation as if the parts had the same size.
		driverCall.Operation = equal
	}

	sendBytes, recvBytes := driverCall.Spans(g.Size(), g.Rank())
	return a.findBuffers(r, call, sendBytes, recvBytes)
}

// equalPartOperations maps operations with splits to those whose parts have the same size.
var equalPartOperations = map[symmem.Operation]symmem.Operation{
	symmem.OpAllToAllV:      symmem.OpAllToAll,
	symmem.OpAllGatherV:     symmem.OpAllGather,
	symmem.OpReduceScatterV: symmem.OpReduceScatter,
}

// findBuffers returns the call with its buffers, which have the given sizes.
func (a *Arguments) findBuffers(
	r *rank, call symmem.Call, sendBytes, recvBytes int64,
) (symmem.Call, error) {
	send, err := r.findMemory(a.Send, sendBytes)
	if err != nil {
		return call, err
	}

	recv, err := r.findMemory(a.Recv, recvBytes)
	if err != nil {
		return call, err
	}

	call.Send = send
	call.Recv = recv
	return call, nil
}

// Explain returns, as JSON, the path (the implementation) that a collective would use now, and the
// reason.
func (cs *calls) Explain(handle uint64, a *Arguments) (string, error) {
	r, g, err := cs.session.group(handle)
	if err != nil {
		return "", err
	}

	call, err := a.toCall(r, g)
	if err != nil {
		return "", err
	}

	explanation, err := g.Explain(call.Operation, call.Send, call.Recv, call.Count, call.Type)
	if err != nil {
		return "", err
	}

	return encode(explanation)
}

// NormArguments holds the arguments of symmem_norm and symmem_scattered_norm as C passes them. The
// buffers are addresses.
type NormArguments struct {
	Scatters                        bool  // set for symmem_scattered_norm
	Type, Quant                     int   // enumerators of the element type and the quantization
	Rows, Hidden                    int64 // number of rows of this rank, and of elements per row
	Epsilon, WeightBias             float32
	Input, Residual, Weight, Output uintptr  // Output may be 0
	Quantized, Scales               uintptr  // used if Quant is not QuantNone
	ScaleStrides                    [2]int64 // elements between rows and between groups
	Stream                          uintptr
	Site                            uint32 // number of the call site, or 0 if it is unknown
}

// Norm queues one kernel for four steps: an all-reduce, a residual addition, an RMSNorm and a
// quantization. With Scatters, the first step is a reduce-scatter.
func (cs *calls) Norm(handle uint64, n *NormArguments) error {
	r, g, err := cs.session.group(handle)
	if err != nil {
		return err
	}

	operation := symmem.OpAllReduceRMSNorm
	inputRows := n.Rows
	if n.Scatters {
		operation = symmem.OpReduceScatterRMSNorm
		inputRows = n.Rows * int64(g.Size())
	}

	args, err := n.toNormArgs(r, inputRows)
	if err != nil {
		return err
	}

	s, err := r.findStream(n.Stream)
	if err != nil {
		return err
	}

	return cs.queueCall(r.interopAt(n.Site), g, symmem.Call{
		Operation: operation, Norm: &args, Send: args.Input, Recv: args.Output,
	}, s)
}

// toNormArgs checks the arguments and looks up the buffers. The input has inputRows rows.
func (n *NormArguments) toNormArgs(r *rank, inputRows int64) (args symmem.NormArgs, err error) {
	const maxElements = 1 << 44 // sizes in bytes cannot overflow
	args = symmem.NormArgs{
		Rows: n.Rows, Hidden: n.Hidden, Epsilon: n.Epsilon, WeightBias: n.WeightBias,
		ScaleStrides: n.ScaleStrides,
	}
	var errs [8]error
	args.Type, errs[0] = parseEnum("element type", types, n.Type)
	if errs[0] == nil && args.Type != symmem.BFloat16 && args.Type != symmem.Float16 {
		errs[0] = fmt.Errorf("the norm does not support %v: %w", args.Type, symmem.ErrInvalid)
	}

	args.Quant, errs[1] = parseEnum("quantization", valuesBelow(symmem.QuantPerGroup+1), n.Quant)
	if err := cmp.Or(errs[:]...); err != nil {
		return args, err
	}

	isHiddenInRange := n.Hidden >= driver.NormUnit && n.Hidden <= driver.MaxHidden
	minStride := min(n.ScaleStrides[0], n.ScaleStrides[1])
	maxStride := max(n.ScaleStrides[0], n.ScaleStrides[1])
	switch {
	case !isHiddenInRange || n.Hidden%driver.NormUnit != 0:
		return args, fmt.Errorf("rows have %d elements; want a multiple of %d up to %d: %w", n.Hidden,
			driver.NormUnit, driver.MaxHidden, symmem.ErrInvalid)
	case n.Rows < 0 || n.Rows > maxElements/n.Hidden:
		return args, fmt.Errorf("%d rows of %d elements: %w", n.Rows, n.Hidden, symmem.ErrInvalid)
	case minStride < 0 || maxStride > maxElements/max(n.Rows, n.Hidden):
		return args, fmt.Errorf("strides of scales are %d and %d elements: %w", n.ScaleStrides[0],
			n.ScaleStrides[1], symmem.ErrInvalid)
	}

	rowBytes := n.Hidden * int64(symmem.BFloat16.Size()) // Float16 has the same size
	args.Input, errs[2] = r.findMemory(n.Input, inputRows*rowBytes)
	args.Residual, errs[3] = r.findMemory(n.Residual, n.Rows*rowBytes)
	if n.Output != 0 {
		args.Output, errs[4] = r.findMemory(n.Output, n.Rows*rowBytes)
	}

	args.Weight, errs[5] = r.findMemory(n.Weight, rowBytes)
	if args.Quant != symmem.QuantNone {
		args.Quantized, errs[6] = r.findMemory(n.Quantized, n.Rows*n.Hidden)
		args.Scales, errs[7] = r.findMemory(n.Scales, args.ScaleBytes())
	}

	return args, cmp.Or(errs[:]...)
}
