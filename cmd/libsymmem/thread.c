/* State of a thread: its last error, its pool, its call site. No function enters Go, so they work
 * before symmem_open, in forked children, and while the process exits. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"
#include "state.h"

struct latest {
	int code;
	char *text, *detail;
	size_t text_length, detail_length;
};

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local int selected;
static _Thread_local uint32_t site;

static void forget(void *p) {
	struct latest *e = p;
	free(e->text);
	free(e->detail);
	free(e);
}

static void make_key(void) { (void)pthread_key_create(&key, forget); }

static char *copy(size_t length, const char *from) {
	char *to = malloc(length + 1);
	if (to) {
		memcpy(to, from, length);
		to[length] = 0;
	}
	return to;
}

void symmem_note_error(int code, size_t text_length, const char *text, size_t detail_length,
                       const char *detail) {
	(void)pthread_once(&once, make_key);
	struct latest *e = pthread_getspecific(key);
	if (!e) {
		e = calloc(1, sizeof *e);
		if (!e || pthread_setspecific(key, e)) {
			free(e);
			return;
		}
	}
	free(e->text);
	free(e->detail);
	e->code = code;
	e->text = copy(text_length, text);
	e->detail = copy(detail_length, detail);
	e->text_length = e->text ? text_length : 0;
	e->detail_length = e->detail ? detail_length : 0;
}

int symmem_give(size_t from_length, const char *from, size_t size, char *text, size_t *length) {
	if (length) *length = from_length;
	if (!text || size == 0) return SYMMEM_OK;
	size_t fits = from_length < size ? from_length : size - 1;
	memcpy(text, from, fits);
	text[fits] = 0;
	return fits == from_length ? SYMMEM_OK : SYMMEM_ERR_SHORT;
}

#define FORKED_TEXT                                                                                \
	"this process is a child of fork(): symmem works in the parent alone; start workers by spawn "   \
	"or forkserver"

static const char forked_text[] =
	FORKED_TEXT;
static const char forked_detail[] =
	"{\"code\":15,\"name\":\"FORKED\",\"message\":\"" FORKED_TEXT "\"}";

static int latest(int detail, size_t size, char *text, size_t *length) {
	if (symmem_forked) {
		if (detail)
			(void)symmem_give(sizeof forked_detail - 1, forked_detail, size, text, length);
		else
			(void)symmem_give(sizeof forked_text - 1, forked_text, size, text, length);
		return SYMMEM_ERR_FORKED;
	}
	(void)pthread_once(&once, make_key);
	struct latest *e = pthread_getspecific(key);
	if (!e) {
		(void)symmem_give(0, "", size, text, length);
		return SYMMEM_OK;
	}
	if (detail)
		(void)symmem_give(e->detail_length, e->detail ? e->detail : "", size, text, length);
	else
		(void)symmem_give(e->text_length, e->text ? e->text : "", size, text, length);
	return e->code;
}

API int symmem_last_error(size_t size, char *text, size_t *length) {
	return latest(0, size, text, length);
}

API int symmem_last_error_json(size_t size, char *text, size_t *length) {
	return latest(1, size, text, length);
}

API int symmem_select(int pool) {
	if (pool < -1 || pool >= SYMMEM_POOLS) return SYMMEM_SELECT_ERROR;
	int before = selected;
	selected = pool;
	return before;
}

API uint32_t symmem_set_site(uint32_t s) {
	uint32_t before = site;
	site = s;
	return before;
}

int symmem_selected(void) { return selected; }

uint32_t symmem_current_site(void) { return site; }
