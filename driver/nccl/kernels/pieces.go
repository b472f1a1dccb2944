package kernels

import "symmem/driver"

// pieceUnit is what pieces are multiples of, in bytes, but for the last: they lie as the buffer
// does.
const pieceUnit = 512

// cut has a reduction that does not fit into exchange memory go in pieces that do, which are alike
// on all ranks. Each is a call of its own to the kernels, with a number of its own.
func (l *Launch) cut(r *Request) {
	most := oneStepLimit(r.Ranks)
	if r.Operation == driver.AllReduce {
		most = twoStepLimit(r.Ranks)
	}
	most = most / pieceUnit * pieceUnit
	pieces := (l.whole + most - 1) / most
	l.bytes = (l.whole/pieces + pieceUnit) / pieceUnit * pieceUnit
	l.bytes = min(l.bytes, most)
	l.Pieces = int((l.whole + l.bytes - 1) / l.bytes)
	l.lines(r)
}

// Piece is the i-th launch of a call.
func (l Launch) Piece(i int) Launch {
	l.from = int64(i) * l.bytes
	l.bytes = min(l.bytes, l.whole-l.from)
	l.Pieces = 1
	return l
}
