package alloc

import (
	"strings"
	"testing"
)

func TestVerifyNamesWhatIsBroken(t *testing.T) {
	for _, row := range []struct {
		name  string
		spoil func(c *Core, live, free uint32)
		want  string
	}{
		{"a block that leaves a gap", func(c *Core, live, _ uint32) {
			c.blocks[live].span -= 1 << idBits
		}, "want it at"},
		{"a block that runs beyond the segment", func(c *Core, _, free uint32) {
			c.blocks[free].span += 1 << idBits
		}, "blocks end at"},
		{"a broken link", func(c *Core, _, free uint32) { c.blocks[free].setPrev(0) }, "previous block"},
		{"free neighbours", func(c *Core, live, _ uint32) {
			c.blocks[live].setState(Free)
		}, "neighbours"},
		{"a pinned free block", func(c *Core, _, free uint32) {
			c.sides[free].pins = 1
			c.blocks[free].rest |= sided
		}, "1 pins"},
		{"a pin that is not marked", func(c *Core, live, _ uint32) {
			c.sides[live].pins = 1
		}, "unmarked"},
		{"a free block in no class", func(c *Core, _, free uint32) {
			c.remove(c.homes[0], &c.blocks[free], c.blocks[free].units())
		}, "is in no class"},
		{"a class of another size", func(c *Core, _, free uint32) {
			c.classes[c.classOf(c.homes[0], c.blocks[free].units())].units--
		}, "does not belong here"},
		{"a slot of another block", func(c *Core, _, free uint32) {
			c.blocks[free].rest += 1 << slotShift
		}, "has slot 1, not 0"},
		{"a key that nobody took along", func(c *Core, _, free uint32) {
			b := &c.blocks[free]
			g := &c.classes[c.classOf(c.homes[0], b.units())].blocks
			c.keys[g.start+g.count] = b.key(free)
		}, "of no block"},
		{"a bit without its summary", func(c *Core, _, _ uint32) { c.homes[0].summary = 0 }, "summary"},
		{"a deferred block in no queue", func(c *Core, live, _ uint32) {
			c.blocks[live].setState(Deferred)
		}, "no queue"},
		{"a wrong counter", func(c *Core, _, _ uint32) { c.counts.used += Unit }, "kept"},
		{"a wrong sum of segments", func(c *Core, _, _ uint32) { c.mapped += Unit }, "bytes mapped"},
		{"a peak below the present", func(c *Core, _, _ uint32) { c.counts.peak = 0 }, "peaks"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCore(t, Default())
			live := uint32(demand(t, c, 4096, 0).Handle)
			if err := c.Verify(); err != nil {
				t.Fatal(err)
			}
			row.spoil(c, live, c.blocks[live].next)
			if err := c.Verify(); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("Verify: %v, want %q", err, row.want)
			}
		})
	}
}
