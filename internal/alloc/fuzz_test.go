package alloc

import "testing"

// FuzzHistories decodes a history from two bytes per step and verifies the Core after every step.
func FuzzHistories(f *testing.F) {
	f.Add([]byte{0x00, 0x10, 0x01, 0x20, 0x02, 0x00})
	f.Add([]byte{0x00, 0xff, 0x40, 0xff, 0x05, 0x01, 0x02, 0x00, 0x06, 0x01})
	f.Add([]byte{0x80, 0x33, 0x03, 0x00, 0x02, 0x00, 0x04, 0x00, 0x07, 0x00})
	f.Fuzz(func(t *testing.T, history []byte) {
		for _, config := range []Config{{First: mib}, PyTorch()} {
			run(t, newCore(t, config), history)
		}
	})
}

// run applies a history. In the first byte of each step, the low bits select the call, and the
// high bits select the stream.
func run(t *testing.T, c *Core, history []byte) {
	t.Helper()
	var held []Block
	for ; len(history) >= 2; history = history[2:] {
		call, stream, n := history[0]&7, Stream(history[0]>>6), int(history[1])
		if call > 1 && len(held) == 0 {
			continue
		}

		i := n % max(len(held), 1)
		switch call {
		case 0, 1:
			size := int64(n+1) << (4 + int(history[0]>>3&7)*2)
			held = append(held, mustAlloc(t, c, size, stream))
		case 2:
			if _, err := c.Free(held[i]); err != nil {
				t.Fatal(err)
			}

			_, _, _ = c.Unpin(held[i].Handle) // fails unless the block is parked
			held = append(held[:i], held[i+1:]...)
		case 3:
			_, _ = c.Pin(held[i].Handle)
		case 4:
			_, _, _ = c.Unpin(held[i].Handle)
		case 5:
			_ = c.Use(held[i].Handle, stream)
		case 6:
			c.StreamCompleted(stream, c.Mark())
		case 7:
			c.Trim(int64(n) * mib)
		}

		if err := c.Verify(); err != nil {
			t.Fatalf("after call %d on stream %d: %v", call, stream, err)
		}
	}
}
