package alloc

import (
	"fmt"
	"io"
)

// Map writes one line for each segment, width cells wide whatever the size of the segment:
//
//	seg 0 |AAAABB..c#DD....|  64 MiB, stream 1
//
// A cell shows the block at its first byte. Live blocks have capital letters, in turn, so that
// neighbours differ; deferred ones are the letter in lower case, parked ones '#', free ones
// '.'. A width below 1 is taken as 64. The error is that of the writer.
func (c *Core) Map(w io.Writer, width int) error {
	if width < 1 {
		width = 64
	}
	cells := make([]byte, width)
	var lines []byte
	for s := range c.Segments() {
		c.paint(cells, s)
		lines = fmt.Appendf(lines, "seg %d |%s|  %s, stream %d\n",
			s.Ordinal, cells, formatBytes(s.Bytes), s.Stream)
	}
	_, err := w.Write(lines)
	return err
}

// paint fills the cells of one segment.
func (c *Core) paint(cells []byte, s Segment) {
	width, cell, letter := int64(len(cells)), int64(0), byte(0)
	for v := range c.Blocks(s.Ordinal) {
		mark := byte('.')
		switch v.State {
		case Live:
			mark = 'A' + letter
		case Deferred:
			mark = 'a' + letter
		case Parked:
			mark = '#'
		case vacant, Free:
		}
		if v.State != Free {
			letter = (letter + 1) % 26
		}
		for ; cell < width && cellStart(cell, width, s.Bytes) < v.Offset+v.Size; cell++ {
			cells[cell] = mark
		}
	}
}

// cellStart returns the offset that a cell begins with; the order of operations keeps it exact
// where width divides bytes and free of overflow always.
func cellStart(cell, width, bytes int64) int64 {
	return bytes/width*cell + bytes%width*cell/width
}

// formatBytes writes a size in the largest unit that divides it.
func formatBytes(n int64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; n != 0 && n%1024 == 0 && i < len(units)-1; i++ {
		n /= 1024
	}
	return fmt.Sprintf("%d %s", n, units[i])
}
