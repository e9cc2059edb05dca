-- memcached's own proxy: whatever has a key goes to the pool.
function mcp_config_routes(pool)
    local all = mcp.funcgen_new()
    local handle = all:new_handle(pool)
    all:ready({ f = function(context)
        return function(request) return context:enqueue_and_wait(request, handle) end
    end })
    mcp.attach(mcp.CMD_ANY_STORAGE, all)
end
