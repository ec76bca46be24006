#!/usr/bin/env python3
"""Scripted stub model server (stdlib only), 127.0.0.1.

Speaks just enough of
  POST */responses                      OpenAI Responses API, SSE            (codex)
  POST */messages                       Anthropic Messages API, SSE or JSON  (claude code)
  POST */chat/completions               OpenAI chat completions, SSE or JSON (pi, opencode)
  POST */models/<m>:streamGenerateContent | :generateContent                 (gemini)
  GET  */models                         tiny model lists

Behaviour is chosen by the LAST "STUB:<case>[:<arg>]" marker found in user text of the
request.  <arg> is a nonce (and for some cases a number): request counters are kept per marker.
Cases: see plan().  Every request is logged to <logdir>/requests.jsonl, bodies to <logdir>/NNNN.json.
Usage: stub_model.py PORT [LOGDIR]; port 0 is any free one. The port is the first line of its output.
"""
import json, os, re, socket, struct, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 18080
LOGDIR = sys.argv[2] if len(sys.argv) > 2 else "stub_log"
MARK = re.compile(r"STUB:([a-z0-9_]+)(?::([A-Za-z0-9_.-]+))?")
LOCK = threading.Lock()
COUNT = {}
SEQ = [0]

UNI = ("emoji \U0001F600\U0001F468\u200d\U0001F469\u200d\U0001F467 cjk \u6f22\u5b57 rtl \u0645\u0631\u062d\u0628\u0627 "
       "combining e\u0301 LS[\u2028] PS[\u2029] NEL[\u0085] nbsp[\u00a0] bom[\ufeff] nul-ish[\u0001\u0007\u001b[31mred\u001b[0m] "
       "del[\u007f] c1[\u009b] tab[\t] cr[\r] crlf[\r\n] lf[\n] quote[\"] backslash[\\] slash[/] html[<b>&amp;] "
       "vt[\u000b] ff[\u000c] fs[\u001c] rs[\u001e] nonchar[\uffff] private[\ue000] tag[\U000E0041] end")
BIG = "".join("%06d %s\n" % (i, "abcdefghijklmnopqrstuvwxyz0123456789-=ABCDEFGHIJKLMNOPQRSTUVWXYZ."[:56]) for i in range(4800))  # ~307 KB


def plan(case, arg, ntool, attempt):
    """-> list of steps. ntool = tool results after the marker, attempt = 1.. per (marker, ntool)."""
    label = "%s%s" % (case, ":" + arg if arg else "")
    def say(t, chunk=12, delay=0.0):
        return ("text", [t[i:i + chunk] for i in range(0, len(t), chunk)], delay)
    done = [say("All done after %d tool result(s). (case %s)" % (ntool, label)), ("end", "stop")]
    if case == "tool":
        return [("tool", "echo tool-ran; pwd; echo to-stderr >&2"), ("end", "tool")] if ntool == 0 else done
    if case == "texttool":   # text, tool call in one response, then answer
        return [say("I will run a command. "), ("tool", "echo tool-ran"), ("end", "tool")] if ntool == 0 else done
    if case == "tool2":      # two parallel calls
        return [("tool", "echo first"), ("tool", "echo second"), ("end", "tool")] if ntool == 0 else done
    if case == "tools3":     # three sequential calls
        return [say("step %d. " % ntool), ("tool", "echo step-%d; sleep 1" % ntool), ("end", "tool")] if ntool < 3 else done
    if case == "toolfail":
        return [("tool", "echo partial; echo oops >&2; exit 3"), ("end", "tool")] if ntool == 0 else done
    if case == "toolsleep":
        return [("tool", "echo before-sleep; sleep 300; echo after"), ("end", "tool")] if ntool == 0 else done
    if case == "toolsleep5":
        return [("tool", "echo before-sleep; sleep 5; echo after"), ("end", "tool")] if ntool == 0 else done
    if case == "tooltrap":   # ignores TERM/INT/HUP
        return [("tool", "trap '' TERM INT HUP; echo trapped; sleep 300; sleep 300"), ("end", "tool")] if ntool == 0 else done
    if case == "toolbg":     # detached background grandchild
        return [("tool", "setsid nohup sleep 301 >/dev/null 2>&1 & sleep 0.2; echo bg-started"), ("end", "tool")] if ntool == 0 else \
            [say("background started. "), ("slow", 200, 0.1), ("end", "stop")]
    if case == "toolbig":
        return [("tool", "seq 1 60000"), ("end", "tool")] if ntool == 0 else done
    if case == "tooluni":
        return [("tool", "printf 'u \\342\\230\\203 \\360\\237\\230\\200 ls[\\342\\200\\250] esc[\\033[31m] bad[\\377\\376] nul[\\000] cr[\\r] end\\n'"), ("end", "tool")] if ntool == 0 else done
    if case == "badtool":
        return [("rawtool", "no_such_tool", {"x": 1}), ("end", "tool")] if ntool == 0 else done
    if case == "patch":
        return [("tool", "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: patched.txt\n+hello\n*** End Patch\nEOF"), ("end", "tool")] if ntool == 0 else done
    if case == "plan":
        return [("rawtool", "update_plan", {"explanation": "why", "plan": [{"step": "one", "status": "in_progress"}, {"step": "two", "status": "pending"}]}), ("end", "tool")] if ntool == 0 else \
            ([("rawtool", "update_plan", {"plan": [{"step": "one", "status": "completed"}, {"step": "two", "status": "completed"}]}), ("end", "tool")] if ntool == 1 else done)
    if case == "websearch":
        return [("rawitem", {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "stub query"}}), say("Searched."), ("end", "stop")]
    if case == "structured":  # the tool by which claude takes a structured answer; elsewhere it is plain text
        return [("rawtool", "StructuredOutput", {"a": "b"}), ("end", "tool")] if ntool == 0 else done
    if case == "json":
        return [say('{"a":"b"}'), ("end", "stop")]
    if case == "ask":         # claude's question with choices
        return [("rawtool", "AskUserQuestion", {"questions": [{"question": "Which color?", "header": "Color", "multiSelect": False,
                "options": [{"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}]}]}), ("end", "tool")] if ntool == 0 else done
    if case == "touch":       # a command that programs ask about
        return [("tool", "touch touched-by-the-tool && echo touched"), ("end", "tool")] if ntool == 0 else done
    if case == "escalate":    # the same, as codex's models ask for it
        return [("rawtool", "exec_command", {"cmd": "touch touched-by-the-tool && echo touched", "sandbox_permissions": "require_escalated",
                "justification": "It must be touched."}), ("end", "tool")] if ntool == 0 else done
    if case == "agent":
        return [("rawtool", "Agent", {"description": "sub task", "prompt": "sub work STUB:tool:%s.sub" % arg, "subagent_type": "general-purpose"}), ("end", "tool")] if ntool == 0 else done
    if case == "agentfg":
        return [("rawtool", "Agent", {"description": "sub task", "prompt": "sub work STUB:tool:%s.sub" % arg, "subagent_type": "general-purpose", "run_in_background": False}), ("end", "tool")] if ntool == 0 else done
    if case == "bgbash":
        return [("rawtool", "Bash", {"command": "sleep 3; echo bg-done", "description": "bg job", "run_in_background": True}), ("end", "tool")] if ntool == 0 else done
    if case == "write":
        return [("rawtool", "Write", {"file_path": "written.txt", "content": "hello\n"}), ("end", "tool")] if ntool == 0 else done
    if case == "piwrite":
        return [("rawtool", "write", {"path": "written.txt", "content": "hello\n"}), ("end", "tool")] if ntool == 0 else done
    if case == "slow":
        return [("slow", 200, 0.1), ("end", "stop")]
    if case == "slow5":
        return [("slow", 50, 0.1), ("end", "stop")]
    if case == "hang":
        return [("hang", 600)]
    if case == "stall":      # some text and then silence
        return [say("begin "), ("hang", 600)]
    if case == "think":
        return [("think", ["Let me ", "think ", "about it."]), say("Thought about it."), ("end", "stop")]
    if case == "big":
        return [say(BIG, chunk=4096), ("end", "stop")]
    if case == "bigone":
        return [say(BIG, chunk=len(BIG)), ("end", "stop")]
    if case == "uni":
        return [say(UNI, chunk=7), ("end", "stop")]
    if case == "surrogate":  # a surrogate pair split over two deltas, and one lone surrogate
        return [("text", ["pair \ud83d", "\ude00 ok; lone \udc00 end"], 0), ("end", "stop")]
    if case == "empty":
        return [("end", "stop")]
    if case == "maxtok":
        return [say("This answer is cut o"), ("end", "length")]
    if case == "e400":
        return [("status", 400, "invalid_request_error", "stub says bad request")]
    if case == "e401":
        return [("status", 401, "authentication_error", "stub says invalid api key")]
    if case == "e403":
        return [("status", 403, "permission_error", "stub says forbidden")]
    if case == "e404":
        return [("status", 404, "not_found_error", "stub says model not found")]
    if case == "ectx":
        return [("status", 400, "context_length_exceeded", "prompt is too long: 250000 tokens > 200000 maximum")]
    if case == "equota":
        return [("status", 429, "insufficient_quota", "You exceeded your current quota")]
    m = re.match(r"e(429|500|529|503)x(\d+)$", case)   # N failures then success
    if m and attempt <= int(m.group(2)):
        code = int(m.group(1))
        return [("status", code, {429: "rate_limit_error", 529: "overloaded_error"}.get(code, "api_error"), "stub says %d (attempt %d)" % (code, attempt))]
    m = re.match(r"dropx(\d+)$", case)                  # connection reset mid-stream N times, then success
    if m and attempt <= int(m.group(1)):
        return [say("partial text before drop "), ("drop",)]
    m = re.match(r"sseerrx(\d+)$", case)                # error event inside the stream
    if m and attempt <= int(m.group(1)):
        return [say("partial text before error "), ("sseerr", "stub in-stream overload")]
    return [say("Hello from the stub model. (case %s)" % label), ("end", "stop")]


def find_marker(texts):
    """texts: list of (kind, text) in order, kind 'user'|'tool'|other -> case, arg, ntool"""
    case, arg, ntool = "plain", None, 0
    for kind, t in texts:
        if kind == "user":
            ms = list(MARK.finditer(t or ""))
            if ms:
                case, arg, ntool = ms[-1].group(1), ms[-1].group(2), 0
        elif kind == "tool":
            ntool += 1
    return case, arg, ntool


def flat(c):
    if isinstance(c, str):
        return c
    if isinstance(c, list):
        return "\n".join(x.get("text", "") if isinstance(x, dict) else str(x) for x in c)
    return ""


class Drop(Exception):
    pass


class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "stub/1"

    def log_message(self, *a):
        pass

    # -- plumbing
    def body(self):
        n = int(self.headers.get("content-length") or 0)
        if n:
            raw = self.rfile.read(n)
        elif (self.headers.get("transfer-encoding") or "").lower() == "chunked":
            raw = b""
            while True:
                k = int(self.rfile.readline().split(b";")[0].strip() or b"0", 16)
                if not k:
                    self.rfile.readline()
                    break
                raw += self.rfile.read(k)
                self.rfile.readline()
        else:
            raw = b""
        enc = (self.headers.get("content-encoding") or "").lower()
        if enc == "gzip":
            import gzip
            raw = gzip.decompress(raw)
        try:
            return json.loads(raw) if raw else {}
        except Exception:
            return {"_raw_len": len(raw), "_enc": enc}

    def log_req(self, b, extra):
        with LOCK:
            SEQ[0] += 1
            n = SEQ[0]
            rec = {"n": n, "t": round(time.time(), 3), "method": self.command, "path": self.path,
                   "ua": self.headers.get("user-agent"), "accept": self.headers.get("accept"),
                   "auth": "bearer" if self.headers.get("authorization") else ("x-api-key" if self.headers.get("x-api-key") else None),
                   "model": b.get("model") if isinstance(b, dict) else None, "stream": b.get("stream") if isinstance(b, dict) else None}
            rec.update(extra)
            with open(os.path.join(LOGDIR, "requests.jsonl"), "a") as f:
                f.write(json.dumps(rec) + "\n")
            with open(os.path.join(LOGDIR, "%04d.json" % n), "w") as f:
                json.dump({"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items() if k.lower() not in ("authorization", "x-api-key", "x-goog-api-key")}, "body": b}, f)
        return n

    def send_json(self, code, obj, headers=()):
        d = json.dumps(obj).encode()
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(d)))
        for k, v in headers:
            self.send_header(k, v)
        self.end_headers()
        self.wfile.write(d)

    def sse_start(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("cache-control", "no-cache")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def sse(self, obj, event=None):
        d = b""
        if event:
            d += b"event: " + event.encode() + b"\n"
        d += b"data: " + (obj if isinstance(obj, str) else json.dumps(obj)).encode() + b"\n\n"
        self.wfile.write(b"%x\r\n" % len(d) + d + b"\r\n")
        self.wfile.flush()

    def sse_end(self):
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def do_drop(self):
        self.wfile.flush()
        time.sleep(0.1)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST
        self.connection.close()
        raise Drop()

    # -- entry points
    def do_HEAD(self):
        self.log_req({}, {})
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self):
        self.log_req({}, {})
        p = self.path.split("?")[0]
        if p.endswith("/models"):
            return self.send_json(200, {"object": "list", "data": [{"id": "stub-model", "object": "model", "created": 0, "owned_by": "stub"}], "models": []})
        self.send_json(404, {"error": {"type": "not_found_error", "message": "stub: no such path"}})

    def do_POST(self):
        b = self.body()
        p = self.path.split("?")[0]
        try:
            if p.endswith("/responses"):
                self.run(b, self.emit_responses, self.texts_responses(b))
            elif p.endswith("/messages/count_tokens"):
                self.log_req(b, {})
                self.send_json(200, {"input_tokens": 1234})
            elif p.endswith("/messages"):
                self.run(b, self.emit_anthropic, self.texts_chat(b))
            elif p.endswith("/chat/completions"):
                self.run(b, self.emit_chat, self.texts_chat(b))
            elif "enerateContent" in p:
                self.run(b, self.emit_gemini, self.texts_gemini(b))
            elif p.endswith(":countTokens"):
                self.log_req(b, {})
                self.send_json(200, {"totalTokens": 1234})
            else:
                self.log_req(b, {})
                self.send_json(404, {"error": {"type": "not_found_error", "message": "stub: no such path"}})
        except (Drop, BrokenPipeError, ConnectionResetError) as e:
            with LOCK, open(os.path.join(LOGDIR, "requests.jsonl"), "a") as f:
                f.write(json.dumps({"arg": getattr(self, "cur", None), "client_gone" if not isinstance(e, Drop) else "dropped_by_stub": True, "t": round(time.time(), 3), "path": self.path}) + "\n")
            self.close_connection = True

    def texts_responses(self, b):
        out = []
        inp = b.get("input", [])
        if isinstance(inp, str):
            return [("user", inp)]
        for it in inp:
            t = it.get("type", "message")
            if t == "message":
                out.append((it.get("role"), flat(it.get("content"))))
            elif t.endswith("_output"):
                out.append(("tool", ""))
        return out

    def texts_chat(self, b):
        out = []
        for m in b.get("messages", []):
            role, c = m.get("role"), m.get("content")
            if role == "tool":
                out.append(("tool", ""))
            elif isinstance(c, list):
                for x in c:
                    if isinstance(x, dict) and x.get("type") == "tool_result":
                        out.append(("tool", ""))
                    elif isinstance(x, dict):
                        out.append((role, x.get("text", "")))
            else:
                out.append((role, c or ""))
        return out

    def texts_gemini(self, b):
        out = []
        for m in b.get("contents", []):
            for x in m.get("parts", []):
                if "functionResponse" in x:
                    out.append(("tool", ""))
                else:
                    out.append((m.get("role"), x.get("text", "")))
        return out

    def run(self, b, emit, texts):
        case, arg, ntool = find_marker(texts)
        self.cur = arg
        has_tools = bool(b.get("tools"))
        side = not has_tools and case != "plain"
        key = (case, arg, ntool, emit.__name__, side)
        with LOCK:
            COUNT[key] = COUNT.get(key, 0) + 1
            attempt = COUNT[key]
        n = self.log_req(b, {"case": case, "arg": arg, "ntool": ntool, "attempt": attempt, "has_tools": has_tools, "side": side})
        steps = plan(case, arg, ntool, attempt)
        if side:  # helper requests (titles, summaries...) get a short plain answer
            steps = [("text", ["Stub side answer"], 0), ("end", "stop")]
        st = steps[0]
        if st[0] == "status":
            hdr = [("x-should-retry", "true")] if st[1] in (429, 500, 529, 503) else []
            if emit == self.emit_anthropic:
                return self.send_json(st[1], {"type": "error", "error": {"type": st[2], "message": st[3]}, "request_id": "req_stub"}, hdr)
            if emit == self.emit_gemini:
                return self.send_json(st[1], {"error": {"code": st[1], "message": st[3], "status": {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED"}.get(st[1], "INTERNAL")}})
            return self.send_json(st[1], {"error": {"message": st[3], "type": st[2], "code": st[2], "param": None}}, hdr)
        emit(b, steps, n)

    def shell_call(self, b, cmd):
        """choose the shell tool offered by this CLI -> (kind, name, args)"""
        names = {}
        for t in b.get("tools", []) or []:
            if "functionDeclarations" in t:
                for f in t["functionDeclarations"]:
                    names[f["name"]] = t
                continue
            f = t.get("function") or t
            if f.get("name"):
                names[f["name"]] = t
        if "exec_command" in names:
            return "function", "exec_command", {"cmd": cmd}
        if "shell_command" in names:
            return "function", "shell_command", {"command": cmd}
        if "shell" in names:
            return "function", "shell", {"command": ["bash", "-lc", cmd]}
        if "exec" in names and names["exec"].get("type") == "custom":
            return "custom", "exec", "const r = await tools.exec_command({cmd: %s}); text(r.output ?? JSON.stringify(r));" % json.dumps(cmd)
        if "Bash" in names:
            return "function", "Bash", {"command": cmd, "description": "stub command"}
        if "bash" in names:
            props = (names["bash"].get("function") or names["bash"]).get("parameters", {}).get("properties", {})
            return "function", "bash", {"command": cmd, "description": "stub command"} if "description" in props else {"command": cmd}
        if "run_shell_command" in names:
            return "function", "run_shell_command", {"command": cmd, "description": "stub command"}
        return "function", "bash", {"command": cmd}

    @staticmethod
    def pieces(steps):
        """normalise text/slow steps to a generator of (kind, payload)"""
        for st in steps:
            if st[0] == "text":
                yield "text", [(c, st[2]) for c in st[1]]
            elif st[0] == "slow":
                yield "text", [("w%03d " % i, st[2]) for i in range(st[1])]
            else:
                yield st[0], st[1:]

    # -- OpenAI Responses
    def emit_responses(self, b, steps, n):
        self.sse_start()
        rid = "resp_%04d" % n
        seq = [0]
        def ev(typ, **kw):
            kw.update(type=typ, sequence_number=seq[0]); seq[0] += 1
            self.sse(kw, typ)
        ev("response.created", response={"id": rid, "object": "response", "status": "in_progress", "model": b.get("model"), "output": []})
        out, idx, outtok, reason = [], 0, 0, "stop"
        for kind, p in self.pieces(steps):
            if kind == "text":
                mid = "msg_%04d_%d" % (n, idx)
                ev("response.output_item.added", output_index=idx, item={"type": "message", "id": mid, "role": "assistant", "status": "in_progress", "content": []})
                ev("response.content_part.added", output_index=idx, content_index=0, item_id=mid, part={"type": "output_text", "text": "", "annotations": []})
                full = ""
                for c, d in p:
                    if d: time.sleep(d)
                    full += c; outtok += 1
                    ev("response.output_text.delta", output_index=idx, content_index=0, item_id=mid, delta=c)
                nxt = [s[0] for s in steps]
                if "drop" in nxt: self.do_drop()
                if "hang" in nxt: continue
                if "sseerr" in nxt: continue
                ev("response.output_text.done", output_index=idx, content_index=0, item_id=mid, text=full)
                it = {"type": "message", "id": mid, "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": full, "annotations": []}]}
                ev("response.output_item.done", output_index=idx, item=it)
                out.append(it); idx += 1
            elif kind == "think":
                it = {"type": "reasoning", "id": "rs_%04d_%d" % (n, idx), "summary": [], "encrypted_content": "stub"}
                ev("response.output_item.added", output_index=idx, item=it)
                ev("response.reasoning_summary_part.added", output_index=idx, summary_index=0, item_id=it["id"], part={"type": "summary_text", "text": ""})
                for c in p[0]:
                    ev("response.reasoning_summary_text.delta", output_index=idx, summary_index=0, item_id=it["id"], delta=c)
                it = dict(it, summary=[{"type": "summary_text", "text": "".join(p[0])}])
                ev("response.output_item.done", output_index=idx, item=it)
                out.append(it); idx += 1
            elif kind == "rawitem":
                ev("response.output_item.added", output_index=idx, item=dict(p[0], status="in_progress"))
                ev("response.output_item.done", output_index=idx, item=p[0])
                out.append(p[0]); idx += 1
            elif kind in ("tool", "rawtool"):
                if kind == "tool":
                    k, name, args = self.shell_call(b, p[0])
                else:
                    k, name, args = "function", p[0], p[1]
                cid = "call_%04d_%d" % (n, idx)
                if k == "custom":
                    it = {"type": "custom_tool_call", "id": "ctc_%04d_%d" % (n, idx), "call_id": cid, "name": name, "input": args, "status": "completed"}
                else:
                    it = {"type": "function_call", "id": "fc_%04d_%d" % (n, idx), "call_id": cid, "name": name, "arguments": json.dumps(args), "status": "completed"}
                ev("response.output_item.added", output_index=idx, item=dict(it, status="in_progress"))
                ev("response.output_item.done", output_index=idx, item=it)
                out.append(it); idx += 1; outtok += 5
            elif kind == "hang":
                time.sleep(p[0]); raise Drop()
            elif kind == "drop":
                self.do_drop()
            elif kind == "sseerr":
                ev("response.failed", response={"id": rid, "object": "response", "status": "failed", "error": {"code": "server_is_overloaded", "message": p[0]}})
                self.sse_end(); return
            elif kind == "end":
                reason = p[0]
        usage = {"input_tokens": 1000 + n, "input_tokens_details": {"cached_tokens": 100}, "output_tokens": outtok, "output_tokens_details": {"reasoning_tokens": 7}, "total_tokens": 1000 + n + outtok}
        if reason == "length":
            ev("response.incomplete", response={"id": rid, "object": "response", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": out, "usage": usage})
        else:
            ev("response.completed", response={"id": rid, "object": "response", "status": "completed", "model": b.get("model"), "output": out, "usage": usage})
        self.sse_end()

    # -- Anthropic Messages
    def emit_anthropic(self, b, steps, n):
        mid = "msg_stub%04d" % n
        usage = {"input_tokens": 1000 + n, "cache_creation_input_tokens": 11, "cache_read_input_tokens": 100, "output_tokens": 1}
        if not b.get("stream"):
            content, reason, ot = [], "end_turn", 0
            for kind, p in self.pieces(steps):
                if kind == "text":
                    content.append({"type": "text", "text": "".join(c for c, _ in p)}); ot += len(p)
                elif kind == "tool":
                    _, name, args = self.shell_call(b, p[0])
                    content.append({"type": "tool_use", "id": "toolu_%04d" % n, "name": name, "input": args}); reason = "tool_use"
                elif kind == "drop":
                    self.do_drop()
                elif kind == "hang":
                    time.sleep(p[0]); raise Drop()
                elif kind == "sseerr":
                    return self.send_json(529, {"type": "error", "error": {"type": "overloaded_error", "message": p[0]}, "request_id": "req_stub"})
                elif kind == "end":
                    reason = {"stop": reason, "tool": "tool_use", "length": "max_tokens"}[p[0]]
            return self.send_json(200, {"id": mid, "type": "message", "role": "assistant", "model": b.get("model"), "content": content, "stop_reason": reason, "stop_sequence": None, "usage": dict(usage, output_tokens=ot)})
        self.sse_start()
        def ev(typ, **kw):
            kw["type"] = typ
            self.sse(kw, typ)
        ev("message_start", message={"id": mid, "type": "message", "role": "assistant", "model": b.get("model"), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage})
        ev("ping")
        idx, ot, reason = 0, 0, "stop"
        for kind, p in self.pieces(steps):
            if kind == "text":
                ev("content_block_start", index=idx, content_block={"type": "text", "text": ""})
                for c, d in p:
                    if d: time.sleep(d)
                    ot += 1
                    ev("content_block_delta", index=idx, delta={"type": "text_delta", "text": c})
                nxt = [s[0] for s in steps]
                if "drop" in nxt: self.do_drop()
                if "hang" in nxt or "sseerr" in nxt: continue
                ev("content_block_stop", index=idx); idx += 1
            elif kind == "think":
                ev("content_block_start", index=idx, content_block={"type": "thinking", "thinking": "", "signature": ""})
                for c in p[0]:
                    ev("content_block_delta", index=idx, delta={"type": "thinking_delta", "thinking": c})
                ev("content_block_delta", index=idx, delta={"type": "signature_delta", "signature": "c3R1Yg=="})
                ev("content_block_stop", index=idx); idx += 1
            elif kind in ("tool", "rawtool"):
                if kind == "tool":
                    _, name, args = self.shell_call(b, p[0])
                else:
                    name, args = p
                ev("content_block_start", index=idx, content_block={"type": "tool_use", "id": "toolu_%04d_%d" % (n, idx), "name": name, "input": {}})
                s = json.dumps(args)
                for i in range(0, len(s), 20):
                    ev("content_block_delta", index=idx, delta={"type": "input_json_delta", "partial_json": s[i:i + 20]})
                ev("content_block_stop", index=idx); idx += 1; ot += 5
            elif kind == "hang":
                time.sleep(p[0]); raise Drop()
            elif kind == "drop":
                self.do_drop()
            elif kind == "sseerr":
                ev("error", error={"type": "overloaded_error", "message": p[0]})
                self.sse_end(); return
            elif kind == "end":
                reason = p[0]
        ev("message_delta", delta={"stop_reason": {"stop": "end_turn", "tool": "tool_use", "length": "max_tokens"}[reason], "stop_sequence": None}, usage={"output_tokens": ot})
        ev("message_stop")
        self.sse_end()

    # -- OpenAI chat completions
    def emit_chat(self, b, steps, n):
        cid = "chatcmpl-stub%04d" % n
        base = {"id": cid, "object": "chat.completion.chunk", "created": int(time.time()), "model": b.get("model")}
        def usage(ot):
            return {"prompt_tokens": 1000 + n, "completion_tokens": ot, "total_tokens": 1000 + n + ot, "prompt_tokens_details": {"cached_tokens": 100}, "completion_tokens_details": {"reasoning_tokens": 7}}
        if not b.get("stream"):
            text, calls = "", []
            for kind, p in self.pieces(steps):
                if kind == "text": text += "".join(c for c, _ in p)
            return self.send_json(200, {"id": cid, "object": "chat.completion", "created": base["created"], "model": b.get("model"), "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}], "usage": usage(3)})
        self.sse_start()
        def ch(delta, fin=None, **kw):
            self.sse(dict(base, choices=[{"index": 0, "delta": delta, "finish_reason": fin}], **kw))
        ch({"role": "assistant", "content": ""})
        ot, ti, reason = 0, 0, "stop"
        for kind, p in self.pieces(steps):
            if kind == "text":
                for c, d in p:
                    if d: time.sleep(d)
                    ot += 1
                    ch({"content": c})
                if "drop" in [s[0] for s in steps]: self.do_drop()
            elif kind == "think":
                for c in p[0]:
                    ch({"reasoning_content": c})
            elif kind in ("tool", "rawtool"):
                if kind == "tool":
                    _, name, args = self.shell_call(b, p[0])
                else:
                    name, args = p
                s = json.dumps(args)
                ch({"tool_calls": [{"index": ti, "id": "call_%04d_%d" % (n, ti), "type": "function", "function": {"name": name, "arguments": ""}}]})
                for i in range(0, len(s), 20):
                    ch({"tool_calls": [{"index": ti, "function": {"arguments": s[i:i + 20]}}]})
                ti += 1; ot += 5
            elif kind == "hang":
                time.sleep(p[0]); raise Drop()
            elif kind == "drop":
                self.do_drop()
            elif kind == "sseerr":
                self.sse({"error": {"message": p[0], "type": "overloaded_error", "code": 529}})
                self.sse_end(); return
            elif kind == "end":
                reason = p[0]
        ch({}, {"stop": "stop", "tool": "tool_calls", "length": "length"}[reason])
        self.sse(dict(base, choices=[], usage=usage(ot)))
        self.sse("[DONE]")
        self.sse_end()

    # -- Gemini
    def emit_gemini(self, b, steps, n):
        def um(ot):
            return {"promptTokenCount": 1000 + n, "candidatesTokenCount": ot, "totalTokenCount": 1000 + n + ot, "cachedContentTokenCount": 100, "thoughtsTokenCount": 7}
        stream = "stream" in self.path
        def chunk(parts, fin=None, ot=0):
            c = {"content": {"role": "model", "parts": parts}, "index": 0}
            if fin: c["finishReason"] = fin
            return {"candidates": [c], "usageMetadata": um(ot), "modelVersion": "stub-gemini", "responseId": "r%04d" % n}
        if not stream:
            text = "".join("".join(c for c, _ in p) for k, p in self.pieces(steps) if k == "text")
            mt = (b.get("generationConfig") or {}).get("responseMimeType")
            if mt == "application/json":
                text = json.dumps({"reasoning": "stub", "next_speaker": "user", "model_choice": "flash", "complexity_score": 10, "complexity_reasoning": "stub"})
            return self.send_json(200, chunk([{"text": text}], "STOP", 3))
        self.sse_start()
        ot, reason = 0, "STOP"
        for kind, p in self.pieces(steps):
            if kind == "text":
                for c, d in p:
                    if d: time.sleep(d)
                    ot += 1
                    self.sse(chunk([{"text": c}], None, ot))
                if "drop" in [s[0] for s in steps]: self.do_drop()
            elif kind == "think":
                for c in p[0]:
                    self.sse(chunk([{"text": "**Thinking** " + c, "thought": True}], None, ot))
            elif kind in ("tool", "rawtool"):
                if kind == "tool":
                    _, name, args = self.shell_call(b, p[0])
                else:
                    name, args = p
                self.sse(chunk([{"functionCall": {"name": name, "args": args, "id": "fc_%04d_%d" % (n, ot)}, "thoughtSignature": "c3R1Yg=="}], None, ot)); ot += 5
            elif kind == "hang":
                time.sleep(p[0]); raise Drop()
            elif kind == "drop":
                self.do_drop()
            elif kind == "sseerr":
                self.sse({"error": {"code": 503, "message": p[0], "status": "UNAVAILABLE"}}); self.sse_end(); return
            elif kind == "end":
                reason = {"stop": "STOP", "tool": "STOP", "length": "MAX_TOKENS"}[p[0]]
        self.sse(chunk([{"text": ""}], reason, ot))
        self.sse_end()


class S(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    def handle_error(self, *a):
        e = sys.exc_info()[1]
        if not isinstance(e, (ConnectionResetError, BrokenPipeError, OSError, ValueError)):
            super().handle_error(*a)


if __name__ == "__main__":
    os.makedirs(LOGDIR, exist_ok=True)
    server = S(("127.0.0.1", PORT), H)
    print(server.server_address[1], flush=True)
    server.serve_forever()
