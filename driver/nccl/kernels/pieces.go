package kernels

import "symmem/driver"

// Pieces are multiples of pieceUnit bytes, except for the last one, so that they are aligned as the
// buffer is.
const pieceUnit = 512

// cut splits a reduction that does not fit into exchange memory into pieces that do, identically on
// all ranks. To the kernels each piece is a separate call with its own number.
func (l *Launch) cut() {
	most := oneStepLimit(l.Ranks)
	if l.Operation == driver.AllReduce {
		most = twoStepLimit(l.Ranks)
	}
	most = most / pieceUnit * pieceUnit
	pieces := (l.whole + most - 1) / most
	l.bytes = (l.whole/pieces + pieceUnit) / pieceUnit * pieceUnit
	l.bytes = min(l.bytes, most)
	l.Pieces = int((l.whole + l.bytes - 1) / l.bytes)
	l.lines()
}
